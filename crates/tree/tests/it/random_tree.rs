//! Random trees: hard links, holes, symlink loops, special files, and names of any bytes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A small generator: the same seed makes the same tree.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Creates a tree with so many names, beside its root.
pub fn populate(rng: &mut Rng, root: &Path, names: usize) {
    fs::create_dir_all(root).unwrap();
    let (mut directories, mut files) = (vec![root.to_path_buf()], Vec::<PathBuf>::new());
    for number in 0..names {
        let dir = directories[rng.below(directories.len())].clone();
        let path = dir.join(name(rng, number));
        match rng.below(10) {
            0..3 => {
                fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            3 => symlink("../..", &path).unwrap(),
            4 => symlink("a target\nthat does not exist", &path).unwrap(),
            5 if !files.is_empty() => fs::hard_link(&files[rng.below(files.len())], &path).unwrap(),
            // The path of a socket has at most 108 bytes.
            6 if path.as_os_str().len() < 100 => drop(UnixListener::bind(&path).unwrap()),
            _ => {
                content(rng, &File::create(&path).unwrap());
                files.push(path);
            }
        }
    }
}

/// A name of any bytes, distinct by its number.
fn name(rng: &mut Rng, number: usize) -> OsString {
    let odd: [&[u8]; 8] =
        [b"", b"\n", b"\xff\xfe", b" two words", b"\t'\"", b"-rf", "\u{fc}".as_bytes(), b"\\*?["];
    let mut name = odd[rng.below(odd.len())].to_vec();
    name.extend(number.to_string().bytes());
    OsString::from_vec(name)
}

/// Writes some bytes, some of them after holes.
fn content(rng: &mut Rng, file: &File) {
    for _ in 0..rng.below(4) {
        let bytes = vec![b'x'; 1 + rng.below(20_000)];
        file.write_all_at(&bytes, (rng.below(40) * 65_536) as u64).unwrap();
    }
    if rng.below(4) == 0 {
        file.set_len(rng.below(4 << 20) as u64).unwrap();
    }
}

/// All paths of a tree with its root, relative to the root, sorted.
pub fn list(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let relative = path.as_os_str().as_bytes()[root.as_os_str().len()..].to_vec();
        found.push(PathBuf::from(OsString::from_vec(relative)));
    }
    found.sort();
    found
}
