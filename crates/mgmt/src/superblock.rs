//! `weft.toml`: a cluster's identity and its constants.

use crate::checked_file::{self, Fault};
use crate::error::{Error, Result};
use std::path::Path;
use types::Timestamp;
use wire::mgmt::ClusterConstants;

/// The format this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;

/// First line of every superblock.
const MAGIC: &str = "weft";

/// Partitions of a new cluster. Each is a unit of execution that can later move between metadata
/// services, so the number bounds how many can share the work; 64 executors cost next to nothing in
/// one process.
const PARTITIONS: u16 = 64;

/// A cluster's identity and its constants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Random; every target's superblock has it too.
    pub uuid: String,
    /// Name for people.
    pub name: String,
    /// Key of the hash that orders entries in directories.
    pub hash_key: (u64, u64),
    /// Number of partitions.
    pub partitions: u16,
    /// Time of the cluster's creation, in whole seconds.
    pub created: Timestamp,
}

impl Superblock {
    /// A superblock with a new identity.
    pub fn random(name: &str) -> Superblock {
        Superblock {
            uuid: uuid_from(rt::secret_u64(), rt::secret_u64()),
            name: name.to_string(),
            // Not to be derived from the UUID, which is public.
            hash_key: (rt::secret_u64(), rt::secret_u64()),
            partitions: PARTITIONS,
            created: Timestamp::new(rt::now().secs, 0),
        }
    }

    /// Reads a superblock file; `None` if it doesn't exist.
    ///
    /// # Errors
    /// A newer format and damage are different errors: the first needs another weft, the second a
    /// backup.
    pub fn read(path: &Path) -> Result<Option<Superblock>> {
        match checked_file::read(path).map_err(|e| Error::io("read", path, e))? {
            Some(content) => Superblock::parse(path, &content).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the superblock of a new cluster atomically and durably.
    pub fn create(&self, path: &Path) -> Result<()> {
        checked_file::write(path, &self.render()).map_err(|e| Error::io("write", path, e))
    }

    /// The constants that nodes and clients get.
    pub fn constants(&self) -> ClusterConstants {
        ClusterConstants {
            uuid: self.uuid.clone(),
            name: self.name.clone(),
            hash_key: (format!("{:016x}", self.hash_key.0), format!("{:016x}", self.hash_key.1)),
            partitions: self.partitions,
            created_s: self.created.secs,
        }
    }

    /// From the constants that a node got; `None` if they are invalid.
    pub fn from_constants(constants: &ClusterConstants) -> Option<Superblock> {
        let key = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(Superblock {
            uuid: constants.uuid.clone(),
            name: constants.name.clone(),
            hash_key: (key(&constants.hash_key.0)?, key(&constants.hash_key.1)?),
            partitions: Some(constants.partitions).filter(|p| *p > 0)?,
            created: Timestamp::new(constants.created_s, 0),
        })
    }

    /// The file's text without the checksum.
    pub(crate) fn render(&self) -> String {
        format!(
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
        )
    }

    pub(crate) fn parse(path: &Path, content: &[u8]) -> Result<Superblock> {
        let table = checked_file::open(content, MAGIC, FORMAT_VERSION).map_err(|fault| match fault {
            Fault::Newer(found) => {
                Error::NewerFormat { path: path.to_path_buf(), found, known: FORMAT_VERSION }
            }
            Fault::Damaged(cause) => corrupt(path, &cause),
        })?;
        Superblock::from_table(&table).ok_or_else(|| corrupt(path, "a field is missing or has a wrong type"))
    }

    fn from_table(table: &toml::Table) -> Option<Superblock> {
        let keys = table.get("hash_key")?.as_array()?;
        let key = |at: usize| u64::from_str_radix(keys.get(at)?.as_str()?, 16).ok();
        let partitions = u16::try_from(table.get("partitions")?.as_integer()?).ok().filter(|p| *p > 0)?;
        Some(Superblock {
            uuid: table.get("uuid")?.as_str()?.to_string(),
            name: table.get("name")?.as_str()?.to_string(),
            hash_key: (key(0)?, key(1)?),
            partitions,
            created: Timestamp::new(table.get("created_unix_s")?.as_integer()?, 0),
        })
    }
}

fn corrupt(path: &Path, cause: &str) -> Error {
    Error::CorruptSuperblock { path: path.to_path_buf(), cause: cause.to_string() }
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
        assert!(!checked_file::draft_of(&path).exists());
    }

    #[test]
    fn the_superblock_round_trips_through_its_facts() {
        assert_eq!(Superblock::from_constants(&sample().constants()), Some(sample()));
        let odd = ClusterConstants { partitions: 0, ..sample().constants() };
        assert_eq!(Superblock::from_constants(&odd), None);
    }

    #[test]
    fn the_text_is_frozen() {
        let text = r#"# Superblock of a weft cluster. Nothing in it may be changed.
magic = "weft"
format = 1
uuid = "01234567-89ab-4def-8123-456789abcdef"
name = 'scratch "quoted"'
hash_key = ["ffffffffffffffff", "0000000000000007"]
partitions = 64
created_unix_s = 1700000000
checksum = "3d481701"
"#;
        assert_eq!(checked_file::with_checksum(&sample().render()), text);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let path = Path::new("weft.toml");
        let text = checked_file::with_checksum(&sample().render());
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Superblock::parse(path, &bytes).is_err(), "byte {at} changed unnoticed");
        }
    }

    #[test]
    fn a_newer_format_is_told_apart_from_damage() {
        let text = checked_file::with_checksum(&sample().render()).replace("format = 1", "format = 2");
        let error = Superblock::parse(Path::new("weft.toml"), text.as_bytes()).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found: 2, known: 1, .. }), "{error}");
    }

    /// SplitMix64's finalizer, and its inverse: a number of the generator reveals its state.
    fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unmix(mut z: u64) -> u64 {
        z = (z ^ (z >> 31) ^ (z >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
        z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
        z ^ (z >> 30) ^ (z >> 60)
    }

    #[test]
    fn the_hash_key_does_not_follow_from_the_uuid() {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let superblock = Superblock::random("test");
        let high = u64::from_str_radix(&superblock.uuid.replace('-', "")[..16], 16).unwrap();
        // The version overwrites four bits of the first number.
        for guess in 0..16 {
            let state = unmix(high & !0xf000 | guess << 12);
            let next = |steps: u64| mix(state.wrapping_add(GAMMA.wrapping_mul(steps)));
            assert_ne!(superblock.hash_key, (next(2), next(3)), "derived from {}", superblock.uuid);
        }
        assert_eq!(unmix(mix(high)), high, "the derivation is right");
    }

    #[test]
    fn uuids_have_version_and_variant() {
        assert_eq!(uuid_from(0, 0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid_from(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
