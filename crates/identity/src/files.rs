//! Files that only their owner may read, replaced atomically and durably.

use crate::MAX_FILE_BYTES;
use crate::error::{Error, Result};
use crate::owner::require_private_file;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of files that hold secrets.
const PRIVATE: u32 = 0o600;

/// Mode of certificates, which are no secret.
const PUBLIC: u32 = 0o644;

/// Writes a file that holds a secret.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    write(path, content, PRIVATE).map_err(|e| Error::io("write", path, e))
}

/// Writes a file that all users may read.
pub fn write_public(path: &Path, content: &str) -> Result<()> {
    write(path, content, PUBLIC).map_err(|e| Error::io("write", path, e))
}

fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let draft = temporary_path_of(path);
    // A draft left by a crash may have another mode; a new file has this one from the first moment.
    match fs::remove_file(&draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    // Independent of the umask.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Reads a file that holds a secret. Refuses one that other users may read or that another user
/// owns.
pub fn read_private(path: &Path) -> Result<String> {
    let failed = |e| Error::io("read", path, e);
    let file = File::open(path).map_err(failed)?;
    require_private_file(path, &file.metadata().map_err(failed)?)?;
    read(path, file)
}

/// Reads a file of certificates.
pub fn read_public(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    read(path, file)
}

fn read(path: &Path, file: File) -> Result<String> {
    let mut content = String::new();
    match file.take(MAX_FILE_BYTES + 1).read_to_string(&mut content) {
        Ok(bytes) if bytes as u64 > MAX_FILE_BYTES => Err(Error::damaged(path, "it is too long")),
        Ok(_) => Ok(content),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::damaged(path, "it is not text")),
        Err(e) => Err(Error::io("read", path, e)),
    }
}

/// Makes a directory that only its owner may enter, unless it exists.
pub fn make_directory(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| Error::io("make", path, e))
}

/// Temporary path of a file until it is renamed.
fn temporary_path_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".draft");
    path.with_file_name(name)
}
