//! Maps and sets by hash, whose keys are one pair for the whole process.
//!
//! `std` draws other keys in each process, so that a map yields its entries in another order there:
//! a simulation would replay in the process that ran it, at best. Here the keys are fixed until a
//! process draws some at random ([`set_hash_keys`]), which one that serves requests does before
//! anything else: clients choose names and ids, and must not choose them such that all collide. A
//! simulation leaves the keys as they are.

use siphasher::sip::SipHasher13;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// `std`'s map with [`ProcessHash`]; it is made by `HashMap::default()`.
#[allow(clippy::disallowed_types, reason = "this is what replaces it")]
pub type HashMap<K, V> = std::collections::HashMap<K, V, ProcessHash>;

/// `std`'s set with [`ProcessHash`]; it is made by `HashSet::default()`.
#[allow(clippy::disallowed_types, reason = "this is what replaces it")]
pub type HashSet<T> = std::collections::HashSet<T, ProcessHash>;

/// SipHash-1-3, as `std` uses it, with the keys that the process had when this was made.
#[derive(Clone, Debug)]
pub struct ProcessHash {
    keys: [u64; 2],
}

static KEYS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Sets the keys of maps and sets that are made from now on; those that there are keep theirs.
pub fn set_hash_keys(keys: [u64; 2]) {
    // A map that is made meanwhile may get one of the old and one of the new: it works as well with
    // these.
    KEYS.iter().zip(keys).for_each(|(place, key)| place.store(key, Ordering::Relaxed));
}

impl Default for ProcessHash {
    fn default() -> ProcessHash {
        ProcessHash { keys: KEYS.each_ref().map(|key| key.load(Ordering::Relaxed)) }
    }
}

impl BuildHasher for ProcessHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        let [first, second] = self.keys;
        SipHasher13::new_with_keys(first, second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test for all that keys do: they are the process's.
    #[test]
    fn keys_are_fixed_until_they_are_set_and_a_map_keeps_its_own() {
        let number = |hash: &ProcessHash| hash.hash_one("name");
        let fixed = ProcessHash::default();
        // SipHash-1-3 of the string's bytes and 0xff, with keys of zero: the same in each process,
        // on any machine.
        assert_eq!(number(&fixed), NAME_HASH);
        let mut before: HashMap<u32, u32> = (0..100).map(|key| (key, key)).collect();
        set_hash_keys([1, 2]);
        let set = ProcessHash::default();
        assert_eq!((number(&fixed), number(&set) == NAME_HASH), (NAME_HASH, false));
        before.extend((100..200).map(|key| (key, key)));
        assert!((0..200).all(|key| before.get(&key) == Some(&key)));
    }

    const NAME_HASH: u64 = 0x3139_0710_8b3c_a7c0;
}
