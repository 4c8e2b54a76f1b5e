//! A bounded cache of what the store holds, including absent keys.
//!
//! A key is read and changed only while the executor of its partition is locked, so the cache needs
//! no coherence of its own: the mutexes of its shards merely keep the maps consistent.

use crate::limits::{CACHE_BYTES, CACHE_SHARDS, MAX_CACHED_VALUE};
use bytes::Bytes;
use parking_lot::Mutex;
use std::hash::BuildHasher;
use types::{HashMap, PartitionId, ProcessHash};

/// Bytes that an entry takes beside its key and value: its slot in the map, and a reference-counted
/// allocation for each.
const ENTRY_OVERHEAD: usize = 256;

/// Two generations a shard: used entries move to the young one, and when that is full, the old one
/// is dropped.
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    hasher: ProcessHash,
    generation_bytes: usize,
}

#[derive(Default)]
struct Shard {
    /// `None`: the store has no such key. Applications look a file up before they create it.
    young: HashMap<Bytes, Option<Bytes>>,
    old: HashMap<Bytes, Option<Bytes>>,
    young_bytes: usize,
}

impl Cache {
    pub fn new() -> Cache {
        Cache::with_capacity(CACHE_BYTES)
    }

    fn with_capacity(bytes: usize) -> Cache {
        Cache {
            shards: (0..CACHE_SHARDS).map(|_| Mutex::default()).collect(),
            hasher: ProcessHash::default(),
            generation_bytes: bytes / CACHE_SHARDS / 2,
        }
    }

    /// The value of a key in the store, if it is cached.
    pub fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let mut shard = self.shard(key).lock();
        if let Some(value) = shard.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = shard.old.remove_entry(key)?;
        shard.insert(key, value.clone(), self.generation_bytes);
        Some(value)
    }

    pub fn put(&self, key: Bytes, value: Option<Bytes>) {
        let mut shard = self.shard(&key).lock();
        if length(&value) > MAX_CACHED_VALUE {
            shard.remove(&key);
        } else {
            shard.old.remove(&key);
            shard.insert(key, value, self.generation_bytes);
        }
    }

    pub fn remove(&self, key: &[u8]) {
        self.shard(key).lock().remove(key);
    }

    /// Drops all keys of a partition.
    pub fn forget(&self, partition: PartitionId) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let keys: Vec<Bytes> = shard.young.keys().chain(shard.old.keys()).cloned().collect();
            let of_it = |key: &Bytes| namespace::partition_of_key(key) == partition;
            keys.into_iter().filter(of_it).for_each(|key| shard.remove(&key));
        }
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % CACHE_SHARDS]
    }
}

fn length(value: &Option<Bytes>) -> usize {
    value.as_ref().map_or(0, Bytes::len)
}

impl Shard {
    fn insert(&mut self, key: Bytes, value: Option<Bytes>, generation_bytes: usize) {
        let key_len = key.len();
        self.young_bytes += length(&value);
        match self.young.insert(key, value) {
            Some(replaced) => self.young_bytes -= length(&replaced),
            None => self.young_bytes += key_len + ENTRY_OVERHEAD,
        }
        if self.young_bytes > generation_bytes {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((key, value)) = self.young.remove_entry(key) {
            self.young_bytes -= key.len() + length(&value) + ENTRY_OVERHEAD;
        }
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(shard: &Shard) -> usize {
        shard.young.iter().chain(&shard.old).map(|(k, v)| k.len() + length(v) + ENTRY_OVERHEAD).sum()
    }

    #[test]
    fn stays_within_its_bytes_and_keeps_what_is_used() {
        let capacity = 1 << 20;
        let cache = Cache::with_capacity(capacity);
        let hot = Bytes::from_static(b"hot");
        cache.put(hot.clone(), Some(Bytes::from_static(b"value")));
        for i in 0..100_000u32 {
            let value = (i % 3 > 0).then(|| Bytes::from(vec![0; (i % 500) as usize]));
            cache.put(Bytes::from(i.to_string()), value);
            if i % 10 == 0 {
                assert_eq!(cache.get(&hot), Some(Some(Bytes::from_static(b"value"))));
            }
            if i % 1000 == 0 {
                let total: usize = cache.shards.iter().map(|shard| bytes(&shard.lock())).sum();
                assert!(total <= capacity + CACHE_SHARDS * 1000, "{total} bytes");
            }
        }
        assert!(cache.get(b"0").is_none());
        for shard in &cache.shards {
            let shard = shard.lock();
            let young: usize = shard.young.iter().map(|(k, v)| k.len() + length(v) + ENTRY_OVERHEAD).sum();
            assert_eq!(young, shard.young_bytes);
        }
    }

    #[test]
    fn a_value_that_is_too_large_replaces_and_is_not_kept() {
        let cache = Cache::new();
        cache.put("k".into(), Some("small".into()));
        cache.put("k".into(), Some(vec![0; MAX_CACHED_VALUE + 1].into()));
        assert!(cache.get(b"k").is_none());
        cache.put("k".into(), Some("again".into()));
        cache.remove(b"k");
        assert!(cache.get(b"k").is_none());
    }

    #[test]
    fn what_is_not_there_is_known_until_it_is_put() {
        let cache = Cache::new();
        assert_eq!(cache.get(b"k"), None);
        cache.put("k".into(), None);
        assert_eq!(cache.get(b"k"), Some(None));
        cache.put("k".into(), Some("v".into()));
        assert_eq!(cache.get(b"k"), Some(Some("v".into())));
    }
}
