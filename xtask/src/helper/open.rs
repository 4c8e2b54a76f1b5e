//! A process that opens the files named on its standard input one after another, and creates
//! missing ones.

use super::lock::print_line;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Printed for a file that was opened. For any other file, the error number is printed.
pub const OPENED: &str = "opened";

/// Opens each file named on standard input for reading and writing with `O_CREAT`. A new file has
/// mode 0600.
pub fn run(dir: &Path) -> io::Result<()> {
    for name in io::stdin().lines() {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        match options.open(dir.join(name?)).map(drop) {
            Ok(()) => print_line(OPENED)?,
            Err(error) => print_line(&error.raw_os_error().unwrap_or_default().to_string())?,
        }
    }
    Ok(())
}
