//! Small files with an integrity check: TOML whose last line is a checksum over the lines before
//! it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use types::{BLOCK_SIZE, block_sum};

/// Longest file in bytes: far above the usual size, small enough to read any file.
const MAX_BYTES: u64 = 64 * 1024;

/// Why a file can't be used.
#[derive(PartialEq, Eq, Debug)]
pub enum Fault {
    /// A newer weft wrote it, in this format.
    Newer(u64),
    /// It is damaged.
    Damaged(String),
}

/// Reads a file, at most one byte beyond the limit; `None` if it doesn't exist.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    use io::Read;
    let mut content = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_BYTES + 1).read_to_end(&mut content).map(|_| Some(content)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Parses a file of this kind. Kind and format are checked before the checksum, since a newer
/// format may use another one.
pub fn open(content: &[u8], magic: &str, known_format: u64) -> Result<toml::Table, Fault> {
    let damaged = |cause: String| Fault::Damaged(cause);
    if content.len() as u64 > MAX_BYTES {
        return Err(damaged("it is too long".into()));
    }
    let text = std::str::from_utf8(content).map_err(|_| damaged("it is not text".into()))?;
    let table: toml::Table =
        toml::from_str(text).map_err(|e| damaged(format!("it can't be parsed ({})", e.message())))?;
    if table.get("magic").and_then(toml::Value::as_str) != Some(magic) {
        return Err(damaged(format!("it lacks magic = \"{magic}\"")));
    }
    let format = table.get("format").and_then(toml::Value::as_integer).and_then(|n| u64::try_from(n).ok());
    match format.ok_or_else(|| damaged("the format is missing".into()))? {
        newer if newer > known_format => return Err(Fault::Newer(newer)),
        _ => {}
    }
    let (body, sum) = split(text).ok_or_else(|| damaged("the checksum is missing".into()))?;
    if sum != text_sum(body) { Err(damaged("the checksum doesn't match".into())) } else { Ok(table) }
}

/// Appends the checksum line.
pub fn with_checksum(body: &str) -> String {
    format!("{body}checksum = \"{:08x}\"\n", text_sum(body))
}

/// Writes a sealed file atomically and durably.
pub fn write(path: &Path, body: &str) -> io::Result<()> {
    let draft = draft_of(path);
    // The superblock has the hash key, which is secret.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(with_checksum(body).as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Temporary path of a file before it gets its name.
pub fn draft_of(path: &Path) -> PathBuf {
    path.with_extension("draft")
}

/// The text before the checksum line, and the checksum in it.
pub fn split(text: &str) -> Option<(&str, u32)> {
    let at = text.rfind("checksum = \"")?;
    let digits = text[at..].strip_prefix("checksum = \"")?.strip_suffix("\"\n")?;
    Some((&text[..at], u32::from_str_radix(digits, 16).ok()?))
}

/// CRC32C of each block of the text, the last one padded with zeros, folded together.
fn text_sum(text: &str) -> u32 {
    text.as_bytes().chunks(BLOCK_SIZE).fold(0u32, |sum, piece| {
        let mut block = [0; BLOCK_SIZE];
        block[..piece.len()].copy_from_slice(piece);
        sum.rotate_left(1) ^ block_sum(&block).0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.toml");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, "magic = \"m\"\nformat = 3\nvalue = 7\n").unwrap();
        let content = read(&path).unwrap().unwrap();
        assert_eq!(open(&content, "m", 3).unwrap()["value"].as_integer(), Some(7));
        assert_eq!(open(&content, "m", 2), Err(Fault::Newer(3)));
        assert!(matches!(open(&content, "n", 3), Err(Fault::Damaged(_))));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_sealed_does_not() {
        let long = vec![b'#'; MAX_BYTES as usize + 1];
        for content in [&b""[..], b"\xff", b"magic = \"m\"\nformat = 1\n", b"magic = 1", &long] {
            assert!(matches!(open(content, "m", 1), Err(Fault::Damaged(_))));
        }
    }
}
