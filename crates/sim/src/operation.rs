//! Random operations.

use crate::model::{Model, NodeId};
use std::fmt;
use types::ByteRange;

/// Names used in every directory: few, so that operations collide.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Maximum depth of a path.
const DEPTH: usize = 3;
/// Maximum file size in bytes: several chunks on several targets at the smallest chunk size.
pub const MAX_FILE: u64 = 400 * 1024;

/// A random number generator (SplitMix64, Steele et al. 2014), independent of the simulated
/// machine's.
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(DEPTH as u64) as usize;
        let names: Vec<&str> = (0..depth).map(|_| NAMES[self.below(NAMES.len() as u64) as usize]).collect();
        names.join("/")
    }

    /// Returns a path, in most cases one that exists.
    fn likely_path(&mut self, model: &Model) -> String {
        let paths = model.paths();
        if paths.is_empty() || self.below(5) == 0 {
            return self.path();
        }
        let index = self.below(paths.len() as u64) as usize;
        paths.keys().nth(index).cloned().expect("the index is below the number of paths")
    }

    fn range(&mut self) -> ByteRange {
        let near = [0, 4096, 65536, 65536 * 4, 131072];
        let start = match self.below(3) {
            0 => near[self.below(5) as usize],
            1 => self.below(MAX_FILE / 4096) * 4096,
            _ => self.below(MAX_FILE),
        };
        let len = match self.below(4) {
            0 => 1 + self.below(100),
            1 => 4096,
            2 => 1 + self.below(20_000),
            _ => 1 + self.below(100_000),
        };
        ByteRange::new(start, (start + len).min(MAX_FILE))
    }
}

/// One operation of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Create {
        path: String,
    },
    Mkdir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Link {
        from: String,
        to: String,
    },
    Rename {
        from: String,
        to: String,
    },
    /// `fill` is the seed of the content.
    Write {
        path: String,
        range: ByteRange,
        fill: u64,
        direct: bool,
    },
    Read {
        path: String,
        range: ByteRange,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Punch {
        path: String,
        range: ByteRange,
    },
    Fsync {
        path: String,
    },
    Stat {
        path: String,
    },
    List {
        path: String,
    },
    /// Opens a file and holds it open across later operations; beyond a limit, the oldest one is
    /// closed.
    Hold {
        path: String,
    },
    /// Reads and writes through a held open file, which may be unlinked.
    UseHeld {
        index: usize,
        range: ByteRange,
        fill: u64,
    },
    SyncAll,
    /// Sleeps, so that background tasks run.
    Sleep {
        ms: u64,
    },
}

impl Operation {
    /// Returns a random operation for the given tree.
    pub fn random(rng: &mut Rng, model: &Model) -> Operation {
        let path = rng.likely_path(model);
        match rng.below(100) {
            0..12 => Operation::Create { path: rng.path() },
            12..20 => Operation::Mkdir { path: rng.path() },
            20..26 => Operation::Unlink { path },
            26..29 => Operation::Rmdir { path },
            29..33 => Operation::Link { from: path, to: rng.path() },
            33..41 => Operation::Rename { from: path, to: rng.path() },
            41..58 => {
                let (range, fill, direct) = (rng.range(), rng.next(), rng.below(2) == 0);
                Operation::Write { path, range, fill, direct }
            }
            58..68 => Operation::Read { path, range: rng.range() },
            68..75 => Operation::Truncate { path, size: rng.below(MAX_FILE) },
            75..79 => Operation::Punch { path, range: rng.range() },
            79..85 => Operation::Fsync { path },
            85..88 => Operation::Stat { path },
            88..91 => Operation::List { path },
            91..93 => Operation::Hold { path },
            93..96 => {
                Operation::UseHeld { index: rng.below(4) as usize, range: rng.range(), fill: rng.next() }
            }
            96..97 => Operation::SyncAll,
            _ => Operation::Sleep { ms: rng.below(1500) },
        }
    }

    /// Applies the operation to the model. Returns the node whose content changed.
    pub fn apply(&self, model: &mut Model, held: &[NodeId]) -> Option<NodeId> {
        match self {
            Operation::Create { path } => drop(model.create(path)),
            Operation::Mkdir { path } => drop(model.mkdir(path)),
            Operation::Unlink { path } => drop(model.unlink(path)),
            Operation::Rmdir { path } => drop(model.rmdir(path)),
            Operation::Link { from, to } => drop(model.link(from, to)),
            Operation::Rename { from, to } => drop(model.rename(from, to)),
            Operation::Write { path, range, fill, .. } => {
                return edit_path(model, path, |c| put(c, *range, *fill));
            }
            Operation::Truncate { path, size } => {
                return edit_path(model, path, |c| c.resize(*size as usize, 0));
            }
            Operation::Punch { path, range } => return edit_path(model, path, |c| punch(c, *range)),
            Operation::UseHeld { index, range, fill } => {
                let id = *held.get(*index)?;
                model.edit(id, |content| put(content, *range, *fill));
                return Some(id);
            }
            _ => {}
        }
        None
    }
}

fn edit_path(model: &mut Model, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> Option<NodeId> {
    let id = model.walk(path).ok()?;
    if model.entries(id).is_ok() {
        return None;
    }
    model.edit(id, change);
    Some(id)
}

/// Returns the content of a write with the given seed.
pub fn bytes_of(fill: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(fill);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn put(content: &mut Vec<u8>, range: ByteRange, fill: u64) {
    if content.len() < range.end as usize {
        content.resize(range.end as usize, 0);
    }
    content[range.start as usize..range.end as usize].copy_from_slice(&bytes_of(fill, range.len() as usize));
}

/// Returns the part of a range within the first `len` bytes.
pub fn within(range: ByteRange, len: usize) -> std::ops::Range<usize> {
    (range.start as usize).min(len)..(range.end as usize).min(len)
}

fn punch(content: &mut [u8], range: ByteRange) {
    let within = within(range, content.len());
    content[within].fill(0);
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
