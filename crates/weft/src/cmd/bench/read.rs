//! Reads results from files.

use crate::output::os_error;
use bench::Results;
use std::path::Path;
use types::{Errno, Error, Result};

/// Longest file that is read, in bytes: results of all profiles together are far shorter.
const MAX_BYTES: u64 = 64 << 20;

/// Reads results of weft, or the output of another program.
///
/// Errors: the file can't be read or is something else; they name the file.
pub fn read(file: &Path) -> Result<Results> {
    let failed = |e| {
        os_error(file.display(), &e)
            .hint("name a file with results: weft bench io --out writes one, and weft bench characterize")
    };
    let size = std::fs::metadata(file).map_err(failed)?.len();
    let refused = |why: String| {
        Error::new(Errno::EINVAL, format!("{}: {why}", file.display()))
            .hint("give results.json of weft bench, JSON of fio (--output-format=json), or the text that IOR or mdtest printed")
    };
    if size > MAX_BYTES {
        return Err(refused(format!("{size} bytes are too many for results")));
    }
    let bytes = std::fs::read(file).map_err(failed)?;
    bench::import::any(&String::from_utf8_lossy(&bytes)).map_err(refused)
}
