//! A tree of files, whose content is known by its checksums.

use crate::named;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Number of files in a generated tree.
const GENERATED_FILES: u64 = 5000;
/// Files in a generated folder.
const FILES_PER_FOLDER: u64 = 50;
/// Maximum bytes of a generated file.
const MAX_FILE_BYTES: u64 = 30_000;

/// Files by their paths below the top folder.
#[derive(Default)]
pub(crate) struct Tree(BTreeMap<PathBuf, Content>);

struct Content {
    bytes: u64,
    checksum: u64,
}

impl Content {
    fn of(bytes: &[u8]) -> Content {
        Content { bytes: bytes.len() as u64, checksum: checksum(bytes) }
    }
}

impl Tree {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|content| content.bytes).sum()
    }

    /// Writes files with content that doesn't compress.
    pub(crate) fn generate(top: &Path) -> io::Result<Tree> {
        let (mut tree, mut state) = (Tree::default(), 1);
        for number in 0..GENERATED_FILES {
            let path = PathBuf::from(format!("{}/{number}", number / FILES_PER_FOLDER));
            let bytes: Vec<u8> = {
                let len = next(&mut state) % MAX_FILE_BYTES;
                (0..len.div_ceil(8)).flat_map(|_| next(&mut state).to_le_bytes()).collect()
            };
            tree.add(top, path, &bytes)?;
        }
        Ok(tree)
    }

    /// Copies the regular files of a tree up to a total size. Folders that hold build output or
    /// history are left out, as well as `top` itself, which may be below `source`.
    pub(crate) fn copy(source: &Path, top: &Path, max_bytes: u64) -> io::Result<Tree> {
        let mut tree = Tree::default();
        let (mut left, mut folders) = (max_bytes, vec![PathBuf::new()]);
        let skipped = top.parent().unwrap_or(top).canonicalize()?;
        while let Some(folder) = folders.pop() {
            let at = source.join(&folder);
            for entry in fs::read_dir(&at).map_err(|e| named(&at, &e))? {
                let entry = entry.map_err(|e| named(&at, &e))?;
                let path = folder.join(entry.file_name());
                let (kind, from) = (entry.file_type()?, entry.path());
                if kind.is_dir() && !is_left_out(&entry.file_name()) && from.canonicalize()? != skipped {
                    folders.push(path);
                } else if kind.is_file() {
                    let size = entry.metadata()?.len();
                    if size <= left {
                        left -= size;
                        tree.add(top, path, &fs::read(&from).map_err(|e| named(&from, &e))?)?;
                    }
                }
            }
        }
        Ok(tree)
    }

    fn add(&mut self, top: &Path, path: PathBuf, bytes: &[u8]) -> io::Result<()> {
        let to = top.join(&path);
        let folder = to.parent().unwrap_or(top);
        fs::create_dir_all(folder).map_err(|e| named(folder, &e))?;
        fs::write(&to, bytes).map_err(|e| named(&to, &e))?;
        self.0.insert(path, Content::of(bytes));
        Ok(())
    }

    /// Reads all files.
    ///
    /// Errors: `InvalidData` with the name of the first file that differs.
    pub(crate) fn compare(&self, top: &Path) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (path, content) in &self.0 {
            let path = top.join(path);
            bytes.clear();
            fs::File::open(&path)
                .and_then(|mut file| file.read_to_end(&mut bytes))
                .map_err(|e| named(&path, &e))?;
            if checksum(&bytes) != content.checksum || bytes.len() as u64 != content.bytes {
                let message = format!("{} has other content than was written", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        Ok(())
    }
}

fn is_left_out(name: &std::ffi::OsStr) -> bool {
    ["target", ".git", "mnt", "weft-data"].iter().any(|other| name == *other)
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The next number of a generator (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_named() {
        let top = tempfile::tempdir().unwrap();
        let tree = Tree::generate(top.path()).unwrap();
        assert_eq!(tree.len() as u64, GENERATED_FILES);
        tree.compare(top.path()).unwrap();
        let changed = top.path().join("3/170");
        let mut bytes = fs::read(&changed).unwrap();
        bytes[7] ^= 1;
        fs::write(&changed, bytes).unwrap();
        let error = tree.compare(top.path()).unwrap_err();
        assert!(error.to_string().contains("3/170"), "{error}");
    }

    #[test]
    fn a_copy_leaves_out_build_output_itself_and_what_is_too_much() {
        let top = tempfile::tempdir().unwrap();
        for path in ["target/a", "src/b", "place/files/c"] {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "12345").unwrap();
        }
        fs::write(top.path().join("large"), "1234567890").unwrap();
        let tree = Tree::copy(top.path(), &top.path().join("place/files"), 8).unwrap();
        assert_eq!(tree.0.keys().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(), ["src/b"]);
    }
}
