//! Merging batches into the writes of one engine commit.

use crate::{Batch, KvError, Outcome};
use bytes::Bytes;
use types::HashMap;

/// Last write per key of the applied batches, in order of the first write to each key.
///
/// An engine gives all writes of one commit the same version, so a key may appear in it only once.
#[derive(Default)]
pub(crate) struct Merge<'a> {
    slots: HashMap<&'a [u8], usize>,
    writes: Vec<(&'a [u8], Option<&'a [u8]>)>,
}

impl<'a> Merge<'a> {
    /// Decides each batch in order, against the stored values (`stored`) and the batches applied
    /// before it.
    pub(crate) fn decide(
        batches: &'a [Batch],
        mut stored: impl FnMut(&[u8]) -> Result<Option<Bytes>, KvError>,
    ) -> Result<(Merge<'a>, Vec<Outcome>), KvError> {
        let mut merge = Merge::default();
        let mut outcomes = Vec::with_capacity(batches.len());
        for batch in batches {
            let applies = merge.guards_hold(batch, &mut stored)?;
            if applies {
                merge.add(batch);
            }
            outcomes.push(if applies { Outcome::Applied } else { Outcome::GuardFailed });
        }
        Ok((merge, outcomes))
    }

    /// Returns the writes, each key once.
    pub(crate) fn writes(&self) -> &[(&'a [u8], Option<&'a [u8]>)] {
        &self.writes
    }

    fn guards_hold(
        &self,
        batch: &Batch,
        stored: &mut impl FnMut(&[u8]) -> Result<Option<Bytes>, KvError>,
    ) -> Result<bool, KvError> {
        for guard in &batch.guards {
            let holds = match self.slots.get(guard.key.as_slice()) {
                Some(&slot) => self.writes[slot].1 == guard.expected.as_deref(),
                None => stored(&guard.key)? == guard.expected,
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add(&mut self, batch: &'a Batch) {
        for (key, value) in &batch.writes {
            let write = (key.as_slice(), value.as_deref());
            match self.slots.get(write.0) {
                Some(&slot) => self.writes[slot] = write,
                None => {
                    self.slots.insert(write.0, self.writes.len());
                    self.writes.push(write);
                }
            }
        }
    }
}
