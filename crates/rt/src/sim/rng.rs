//! The simulation's randomness.

use crate::clock::split_mix;

/// A seeded generator.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Differs between two generators of one seed unless both have produced equally many numbers.
    pub(crate) fn position(&self) -> u64 {
        self.0
    }

    pub(crate) fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number in `0..limit`; the bias for limits far below 2^64 doesn't matter here.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 0
    }

    pub(crate) fn in_a_million(&mut self, chances: u32) -> bool {
        chances > 0 && self.below(1_000_000) < chances as u64
    }
}

/// Adds a value to a digest that depends on the order of its values.
pub(crate) fn mix(digest: &mut u64, value: u64) {
    let mut mixed = *digest ^ value.rotate_left(17);
    *digest = split_mix(&mut mixed);
}
