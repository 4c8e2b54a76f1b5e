//! Results from files.

use crate::output::os_error;
use bench::Results;
use std::path::Path;
use types::{Errno, Error, Result};

/// Longest file that is read, bytes: results of all profiles together are far shorter.
const MAX_BYTES: u64 = 64 << 20;

/// Results of weft, or another program's output.
///
/// Errors: a file that can't be read, or that is something else, with its name.
pub fn read(file: &Path) -> Result<Results> {
    let size = std::fs::metadata(file).map_err(|e| os_error(file.display(), &e))?.len();
    let refused = |why: String| {
        Error::new(Errno::EINVAL, format!("{}: {why}", file.display()))
            .hint("give results.json of weft bench, JSON of fio (--output-format=json), or the text that IOR or mdtest printed")
    };
    if size > MAX_BYTES {
        return Err(refused(format!("{size} bytes are no results")));
    }
    let bytes = std::fs::read(file).map_err(|e| os_error(file.display(), &e))?;
    bench::import::any(&String::from_utf8_lossy(&bytes)).map_err(refused)
}
