//! A process that opens files by name, one after another as it is told, and makes those that don't
//! exist.

use super::lock::say;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What the process prints for a file that it has opened. For any other file it prints the error
/// number.
pub const OPENED: &str = "opened";

/// Opens each file that standard input names, for reading and writing and with `O_CREAT`. A new
/// file has mode 0600.
pub fn run(dir: &Path) -> io::Result<()> {
    for name in io::stdin().lines() {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        match options.open(dir.join(name?)).map(drop) {
            Ok(()) => say(OPENED)?,
            Err(error) => say(&error.raw_os_error().unwrap_or_default().to_string())?,
        }
    }
    Ok(())
}
