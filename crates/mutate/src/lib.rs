//! Corrupted inputs for decoders: the short form of the fuzz targets in `fuzz/`.
//!
//! A test supplies a valid image and a function. [`damage`] calls the function with the image
//! truncated at every byte, with every bit flipped, and with many random changes. [`confined`] runs
//! the test in a separate process with limits on memory and CPU time. So the test fails if a
//! decoder panics, never returns, or trusts a corrupt length.
//!
//! The inputs depend only on the image: a failure is reproducible, and its input is printed.
//!
//! Only tests use this crate. It is independent of any format.
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

/// Maximum number of flipped bits, and of truncated lengths, per image. It bounds the time for long
/// images.
const MAX_POSITIONS: usize = 1 << 15;

/// Seed of the generator of random changes.
const SEED: u64 = 0x7765_6674;

/// Maximum number of changes per input.
const MAX_CHANGES: u64 = 6;

/// Maximum number of bytes that one change inserts, removes or copies.
const MAX_CHANGE_BYTES: u64 = 16;

/// Names a folder to which the valid images are written, as seeds for the fuzz targets.
const SEEDS: &str = "WEFT_FUZZ_SEEDS";

/// Byte values that often break lengths, counts and flags.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// Calls `check` with the image, with all results of [`cuts`] and [`flips`], and with `rounds`
/// random changes of the image.
pub fn damage(image: &[u8], rounds: usize, check: impl Fn(&[u8])) {
    write_seed(image);
    check_input(image, &check);
    cuts(image, &check);
    flips(image, &check);
    changes(image, rounds, &check);
}

/// Calls `check` with every prefix of the image, including the empty one; with evenly spaced
/// prefixes of a long image.
pub fn cuts(image: &[u8], check: impl Fn(&[u8])) {
    for length in positions(image.len()) {
        check_input(&image[..length], &check);
    }
}

/// Calls `check` with every single-bit flip of the image; with evenly spaced flips of a long image.
pub fn flips(image: &[u8], check: impl Fn(&[u8])) {
    let mut flipped = image.to_vec();
    for bit in positions(image.len() * 8) {
        flipped[bit / 8] ^= 1 << (bit % 8);
        check_input(&flipped, &check);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Calls `check` `rounds` times with a copy of the image that has some random changes.
pub fn changes(image: &[u8], rounds: usize, check: impl Fn(&[u8])) {
    let mut random = Random::new(SEED);
    for _ in 0..rounds {
        let mut changed = image.to_vec();
        for _ in 0..=random.below(MAX_CHANGES) {
            change(&mut changed, &mut random);
        }
        check_input(&changed, &check);
    }
}

/// Applies one random change: flips a bit, sets, inserts, removes or copies bytes, or truncates.
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

/// Returns a random byte; in half of the cases one of [`EDGES`].
fn byte(random: &mut Random) -> u8 {
    match random.below(2) {
        0 => EDGES[random.below(EDGES.len() as u64) as usize],
        _ => random.below(256) as u8,
    }
}

/// Returns all positions below `count`, or evenly spaced ones if there are more than
/// [`MAX_POSITIONS`].
fn positions(count: usize) -> impl Iterator<Item = usize> {
    // An odd step reaches all bits of bytes, and all bytes of words.
    let step = match count.div_ceil(MAX_POSITIONS) {
        0 | 1 => 1,
        step => step | 1,
    };
    (0..count).step_by(step)
}

fn write_seed(image: &[u8]) {
    let Some(folder) = std::env::var_os(SEEDS) else { return };
    let mix = |state: u64, byte: &u8| Random::new(state ^ u64::from(*byte)).below(u64::MAX);
    let name = format!("{:016x}", image.iter().fold(image.len() as u64, mix));
    let folder = std::path::Path::new(&folder);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join(name), image))
        .expect("the folder for seeds can be written to");
}

/// Calls `check`, and prints the input if it panics.
fn check_input(bytes: &[u8], check: impl Fn(&[u8])) {
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
