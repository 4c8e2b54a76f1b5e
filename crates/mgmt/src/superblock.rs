//! `weft.toml`: who a cluster is, and what was fixed when it was made.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use types::{BLOCK_SIZE, Timestamp, block_sum};

/// The format this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;

/// What the first line of every superblock says.
const MAGIC: &str = "weft";

/// Partitions of a new cluster. Each is a unit of execution that can later move between metadata services, so the
/// number bounds how many can share the work; 64 executors cost next to nothing in one process.
const PARTITIONS: u16 = 64;

/// Largest superblock, bytes: far above what one holds, small enough to read whatever is there.
const MAX_SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// A cluster's identity and its constants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Random; every target carries it too.
    pub uuid: String,
    /// For people.
    pub name: String,
    /// Key of the hash that orders names in directories.
    pub hash_key: (u64, u64),
    /// Number of partitions of the inode space.
    pub partitions: u16,
    /// When the cluster was made.
    pub created: Timestamp,
}

impl Superblock {
    /// A cluster that has never been before.
    pub fn random(name: &str) -> Superblock {
        Superblock {
            uuid: uuid_from(rt::random_u64(), rt::random_u64()),
            name: name.to_string(),
            hash_key: (rt::random_u64(), rt::random_u64()),
            partitions: PARTITIONS,
            created: rt::now(),
        }
    }

    /// Reads a superblock file; `None` when there is none.
    ///
    /// # Errors
    /// A newer format and damage are told apart: the first needs another weft, the second a backup.
    pub fn read(path: &Path) -> Result<Option<Superblock>> {
        let text = match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("read", path, e)),
            Ok(meta) if !meta.is_file() => return Err(corrupt(path, "it is not a regular file")),
            Ok(meta) if meta.len() > MAX_SUPERBLOCK_BYTES => return Err(corrupt(path, "it is too long")),
            Ok(_) => fs::read(path).map_err(|e| Error::io("read", path, e))?,
        };
        let text = String::from_utf8(text).map_err(|_| corrupt(path, "it is not text"))?;
        Superblock::parse(path, &text).map(Some)
    }

    /// Writes the superblock of a new cluster so that it is there entirely, and durably, or not at all.
    pub fn create(&self, path: &Path) -> Result<()> {
        let draft = draft_of(path);
        let write = || -> io::Result<()> {
            let mut file = File::create(&draft)?;
            file.write_all(self.render().as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|e| Error::io("write", path, e))
    }

    fn render(&self) -> String {
        let body = format!(
            "# Superblock of a weft cluster. Nothing in it may be changed.\n\
             magic = \"{MAGIC}\"\n\
             format = {FORMAT_VERSION}\n\
             uuid = \"{}\"\n\
             name = {}\n\
             hash_key = [\"{:016x}\", \"{:016x}\"]\n\
             partitions = {}\n\
             created_unix_s = {}\n",
            self.uuid,
            toml::Value::String(self.name.clone()),
            self.hash_key.0,
            self.hash_key.1,
            self.partitions,
            self.created.secs,
        );
        let sum = text_sum(&body);
        format!("{body}checksum = \"{sum:08x}\"\n")
    }

    fn parse(path: &Path, text: &str) -> Result<Superblock> {
        let table: toml::Table =
            toml::from_str(text).map_err(|e| corrupt(path, &format!("it can't be parsed ({})", e.message())))?;
        if table.get("magic").and_then(toml::Value::as_str) != Some(MAGIC) {
            return Err(corrupt(path, "it doesn't say magic = \"weft\""));
        }
        // Before the checksum: a newer format may sum differently.
        let format = number(&table, "format").ok_or_else(|| corrupt(path, "the format is missing"))?;
        if format > FORMAT_VERSION {
            let path = path.to_path_buf();
            return Err(Error::NewerFormat { path, found: format, known: FORMAT_VERSION });
        }
        let (body, sum) = split_checksum(text).ok_or_else(|| corrupt(path, "the checksum is missing"))?;
        if sum != text_sum(body) {
            return Err(corrupt(path, "the checksum doesn't match"));
        }
        Superblock::from_table(&table).ok_or_else(|| corrupt(path, "a field is missing or has a wrong type"))
    }

    fn from_table(table: &toml::Table) -> Option<Superblock> {
        let keys = table.get("hash_key")?.as_array()?;
        let key = |at: usize| u64::from_str_radix(keys.get(at)?.as_str()?, 16).ok();
        let partitions = u16::try_from(number(table, "partitions")?).ok().filter(|p| *p > 0)?;
        Some(Superblock {
            uuid: table.get("uuid")?.as_str()?.to_string(),
            name: table.get("name")?.as_str()?.to_string(),
            hash_key: (key(0)?, key(1)?),
            partitions,
            created: Timestamp::new(table.get("created_unix_s")?.as_integer()?, 0),
        })
    }
}

/// Where a superblock is written before it gets its name.
pub(crate) fn draft_of(path: &Path) -> std::path::PathBuf {
    path.with_extension("toml.draft")
}

fn corrupt(path: &Path, cause: &str) -> Error {
    Error::CorruptSuperblock { path: path.to_path_buf(), cause: cause.to_string() }
}

fn number(table: &toml::Table, key: &str) -> Option<u64> {
    table.get(key)?.as_integer().and_then(|n| u64::try_from(n).ok())
}

/// The text before the checksum line, and what that line says.
fn split_checksum(text: &str) -> Option<(&str, u32)> {
    let at = text.rfind("checksum = \"")?;
    let digits = text[at..].strip_prefix("checksum = \"")?.strip_suffix("\"\n")?;
    Some((&text[..at], u32::from_str_radix(digits, 16).ok()?))
}

/// CRC32C of the text, padded with zeros to whole blocks and folded over them.
fn text_sum(text: &str) -> u32 {
    text.as_bytes().chunks(BLOCK_SIZE).fold(0u32, |sum, piece| {
        let mut block = [0; BLOCK_SIZE];
        block[..piece.len()].copy_from_slice(piece);
        sum.rotate_left(1) ^ block_sum(&block).0
    })
}

/// A random (version 4) UUID in its usual form.
fn uuid_from(high: u64, low: u64) -> String {
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            uuid: "01234567-89ab-4def-8123-456789abcdef".into(),
            name: "scratch \"quoted\"".into(),
            hash_key: (u64::MAX, 7),
            partitions: 64,
            created: Timestamp::new(1_700_000_000, 0),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.toml");
        assert_eq!(Superblock::read(&path).unwrap(), None);
        sample().create(&path).unwrap();
        assert_eq!(Superblock::read(&path).unwrap(), Some(sample()));
        assert!(!draft_of(&path).exists());
    }

    #[test]
    fn the_text_is_frozen() {
        assert!(sample().render().ends_with("created_unix_s = 1700000000\nchecksum = \"CHECKSUM\"\n"));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let path = Path::new("weft.toml");
        let text = sample().render();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(Superblock::parse(path, &changed).is_err(), "byte {at} changed unnoticed:\n{changed}");
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_apart_from_damage() {
        let text = sample().render().replace("format = 1", "format = 2");
        let error = Superblock::parse(Path::new("weft.toml"), &text).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found: 2, known: 1, .. }), "{error}");
    }

    #[test]
    fn uuids_have_version_and_variant() {
        assert_eq!(uuid_from(0, 0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid_from(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
