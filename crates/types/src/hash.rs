//! Hash maps and sets that share one pair of keys in the whole process.
//!
//! `std` draws different keys in each process, so iteration order differs between processes and a
//! simulation can't be replayed in another one. Here the keys are fixed until the process sets
//! random ones ([`set_hash_keys`]). A process that serves requests does that first: clients choose
//! names and ids, and must not be able to make them all collide. A simulation keeps the fixed keys.

use siphasher::sip::SipHasher13;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// `std`'s map with [`ProcessHash`]; create it with `HashMap::default()`.
#[allow(clippy::disallowed_types, reason = "this is what replaces it")]
pub type HashMap<K, V> = std::collections::HashMap<K, V, ProcessHash>;

/// `std`'s set with [`ProcessHash`]; create it with `HashSet::default()`.
#[allow(clippy::disallowed_types, reason = "this is what replaces it")]
pub type HashSet<T> = std::collections::HashSet<T, ProcessHash>;

/// SipHash-1-3, as `std` uses it, with the process's keys at the time of its creation.
#[derive(Clone, Debug)]
pub struct ProcessHash {
    keys: [u64; 2],
}

static KEYS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Sets the keys of maps and sets that are created from now on; existing ones keep their keys.
pub fn set_hash_keys(keys: [u64; 2]) {
    // A map that is created concurrently may get one old and one new key: it works with those as
    // well.
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

    /// One test covers everything about the keys, since they are global to the process.
    #[test]
    fn hash_keys_are_fixed_until_set_and_existing_maps_keep_theirs() {
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
