//! Damaged images of what a decoder reads: the short form of the fuzz targets below `fuzz/`.
//!
//! A test gives a valid image and a function. [`damage`] calls the function with the image cut at
//! every byte, with every bit flipped, and changed at random in many ways; [`confined`] runs the
//! test in a process of its own whose memory and CPU time are bounded. So a decoder that panics,
//! never returns, or believes a length that it was told fails the test.
//!
//! The inputs follow from the image alone: a failure comes again at the next run, and its input is
//! printed.
//!
//! Only tests use this crate. It knows no format.
//!
//! ```
//! fn decode(bytes: &[u8]) -> Option<&[u8]> {
//!     let (len, rest) = bytes.split_first()?;
//!     rest.get(..usize::from(*len))
//! }
//! mutate::damage(b"\x03abc", 100, |bytes| drop(decode(bytes)));
//! ```

mod confined;
mod random;

pub use confined::confined;
pub use random::Random;

/// Bits that are flipped and lengths to which an image is cut, each at most: so a long image takes
/// no longer than a short one.
const MAX_PLACES: usize = 1 << 15;

/// The first state of the generator of random changes.
const SEED: u64 = 0x7765_6674;

/// Changes that one input has, at most.
const MAX_CHANGES: u64 = 6;

/// Bytes that one change inserts, removes or copies, at most.
const MAX_CHANGE_BYTES: u64 = 16;

/// Names a folder into which the images are written that are damaged: seeds for the fuzz targets.
const SEEDS: &str = "WEFT_FUZZ_SEEDS";

/// Bytes that lengths, counts and flags go wrong with.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// Calls `check` with the image, with all that [`cuts`] and [`flips`] make of it, and with `rounds`
/// random changes of it.
pub fn damage(image: &[u8], rounds: usize, check: impl Fn(&[u8])) {
    keep_seed(image);
    given(image, &check);
    cuts(image, &check);
    flips(image, &check);
    changes(image, rounds, &check);
}

/// Calls `check` with every beginning of the image, the empty one included; of a long image with
/// evenly spread ones.
pub fn cuts(image: &[u8], check: impl Fn(&[u8])) {
    for length in places(image.len()) {
        given(&image[..length], &check);
    }
}

/// Calls `check` with the image with one bit flipped, for every bit; of a long image for evenly
/// spread ones.
pub fn flips(image: &[u8], check: impl Fn(&[u8])) {
    let mut flipped = image.to_vec();
    for bit in places(image.len() * 8) {
        flipped[bit / 8] ^= 1 << (bit % 8);
        given(&flipped, &check);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Calls `check` `rounds` times with the image after a few random changes.
pub fn changes(image: &[u8], rounds: usize, check: impl Fn(&[u8])) {
    let mut random = Random::new(SEED);
    for _ in 0..rounds {
        let mut changed = image.to_vec();
        for _ in 0..=random.below(MAX_CHANGES) {
            change(&mut changed, &mut random);
        }
        given(&changed, &check);
    }
}

/// Changes something somewhere: flips a bit, sets, inserts, removes or copies bytes, or cuts the
/// rest off.
pub fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    let count = 1 + random.below(MAX_CHANGE_BYTES) as usize;
    match random.below(16) {
        0..=3 => bytes[at] ^= 1 << random.below(8),
        4..=7 => bytes[at] = byte(random),
        8..=9 => drop(bytes.splice(at..at, (0..count).map(|_| byte(random)).collect::<Vec<_>>())),
        10..=11 => drop(bytes.drain(at..bytes.len().min(at + count))),
        12..=14 => {
            let from = random.below(bytes.len() as u64) as usize;
            let copy = bytes[from..bytes.len().min(from + count)].to_vec();
            let over = at..bytes.len().min(at + copy.len());
            drop(bytes.splice(over, copy));
        }
        _ => bytes.truncate(at),
    }
}

/// Any byte, half of the time one of [`EDGES`].
fn byte(random: &mut Random) -> u8 {
    match random.below(2) {
        0 => EDGES[random.below(EDGES.len() as u64) as usize],
        _ => random.below(256) as u8,
    }
}

/// All places below `count`, or evenly spread ones where there are more than [`MAX_PLACES`].
fn places(count: usize) -> impl Iterator<Item = usize> {
    // An odd step meets all bits of bytes, and all bytes of words.
    let step = match count.div_ceil(MAX_PLACES) {
        0 | 1 => 1,
        step => step | 1,
    };
    (0..count).step_by(step)
}

fn keep_seed(image: &[u8]) {
    let Some(folder) = std::env::var_os(SEEDS) else { return };
    let mix = |state: u64, byte: &u8| Random::new(state ^ u64::from(*byte)).below(u64::MAX);
    let name = format!("{:016x}", image.iter().fold(image.len() as u64, mix));
    let folder = std::path::Path::new(&folder);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join(name), image))
        .expect("the folder for seeds can be written to");
}

/// Calls `check`, and prints the input should that panic.
fn given(bytes: &[u8], check: impl Fn(&[u8])) {
    struct Input<'a>(&'a [u8]);
    impl Drop for Input<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input was b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let _input = Input(bytes);
    check(bytes);
}
