//! Scans of long ranges, one page at a time.

use crate::{KvError, Pair, Readable};

/// A scan of a range in pages: memory is bounded by a page, and the caller waits once per page.
///
/// On a store that changes meanwhile, each page has the state of its own moment.
pub struct Pages<'a> {
    source: &'a dyn Readable,
    /// First key of the next page.
    from: Vec<u8>,
    to: Vec<u8>,
    page_pairs: usize,
}

impl<'a> Pages<'a> {
    /// Creates a scan of the pairs with `from <= key < to`, at most `page_pairs` in a page.
    pub fn new(source: &'a dyn Readable, from: &[u8], to: &[u8], page_pairs: usize) -> Pages<'a> {
        Pages { source, from: from.to_vec(), to: to.to_vec(), page_pairs }
    }

    /// Returns the next page, in order of unsigned bytes; `None` at the end of the range.
    ///
    /// # Errors
    /// Those of [`Readable::scan`].
    pub async fn next(&mut self) -> Result<Option<Vec<Pair>>, KvError> {
        let page = self.source.scan(&self.from, &self.to, self.page_pairs).await?;
        let Some((last, _)) = page.last() else { return Ok(None) };
        // The next possible key.
        self.from = [last.as_ref(), &[0]].concat();
        Ok(Some(page))
    }
}
