//! The map of a store that is restored from a backup.

use crate::management::{MAP_KEY, NUMBERS_KEY};
use crate::map_changes::NextNumbers;
use types::{ClusterMap, Epoch, Errno, Error, Result};

/// Upper bound of the map epochs since a backup: one is made with a change, and only some in a
/// second.
const EPOCH_MARGIN: u64 = 1 << 30;

/// Upper bound of epochs in a second. An epoch is above this many for each second since 1970, so
/// that restoring the same backup twice leads to epochs above those after the first restore. Below
/// 2^53 for some centuries.
const EPOCHS_PER_S: u64 = 1 << 20;

/// Upper bound of the nodes, targets and groups, and pools, created since a backup: their numbers
/// are not reused.
const NUMBER_MARGIN: u32 = 1000;
const POOL_MARGIN: u16 = 100;

/// Management's records that are not part of the file system's history: if they are still readable,
/// they are used instead of those of the backup.
pub const LIVE_RECORDS: [&[u8]; 2] = [MAP_KEY, NUMBERS_KEY];

/// Whether a metadata backup was restored between two epochs of the map. Entries that the later map
/// lacks were not removed in that case.
pub fn was_restored_between(before: Epoch, after: Epoch) -> bool {
    after.0.saturating_sub(before.0) >= EPOCH_MARGIN
}

/// Adapts a record of management to a restored store; `None` for a record that isn't management's.
///
/// The map gets an epoch above all earlier ones, so that it counts as the newest. Numbers of nodes
/// and targets that were assigned since the backup are not reused: those nodes and targets still
/// exist, and would be confused with new ones.
///
/// Draining of targets ends: a file that moves on to another target leaves the place where the
/// store from before the restore looks for it, and an administrator may return to that store.
///
/// # Errors
/// A record that can't be read.
pub fn restored_record(key: &[u8], value: &[u8], now_s: i64) -> Option<Result<Vec<u8>>> {
    match key {
        MAP_KEY => Some(restored_map(value, u64::try_from(now_s).unwrap_or(0))),
        NUMBERS_KEY => Some(restored_numbers(value)),
        _ => None,
    }
}

fn restored_map(value: &[u8], now_s: u64) -> Result<Vec<u8>> {
    let mut map: ClusterMap =
        serde_json::from_slice(value).map_err(|error| unreadable("cluster map", &error))?;
    map.epoch = Epoch(map.epoch.0.saturating_add(EPOCH_MARGIN).max(now_s.saturating_mul(EPOCHS_PER_S)));
    map.targets.iter_mut().for_each(|target| target.drain = false);
    // Members refuse requests of a version older than theirs.
    for group in map.groups.iter_mut().filter(|group| group.scheme.spans_targets()) {
        group.since = map.epoch;
    }
    Ok(serde_json::to_vec(&map).expect("a map has string keys only"))
}

fn restored_numbers(value: &[u8]) -> Result<Vec<u8>> {
    let mut numbers: NextNumbers =
        serde_json::from_slice(value).map_err(|error| unreadable("numbers of nodes and targets", &error))?;
    numbers.next_node = numbers.next_node.saturating_add(NUMBER_MARGIN);
    numbers.next_target = numbers.next_target.saturating_add(NUMBER_MARGIN);
    numbers.next_group = numbers.next_group.saturating_add(NUMBER_MARGIN);
    numbers.next_pool = numbers.next_pool.saturating_add(POOL_MARGIN);
    Ok(serde_json::to_vec(&numbers).expect("numbers have string keys only"))
}

fn unreadable(what: &str, cause: &serde_json::Error) -> Error {
    Error::new(Errno::EIO, format!("the {what} in the backup can't be read: {cause}"))
        .hint("use another backup")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_map_has_a_newer_epoch_and_unused_numbers() {
        let single = types::Group::single(types::GroupId(1), types::PoolId(1), types::TargetId(1));
        let mirrored = types::Group { scheme: types::Scheme::Mirror(2), since: Epoch(5), ..single.clone() };
        let targets = vec![types::Target {
            id: types::TargetId(1),
            node: types::NodeId(1),
            pool: types::PoolId(1),
            path: "/t".into(),
            state: types::TargetState::Online,
            capacity: 0,
            free: 0,
            class: types::CapacityClass::Normal,
            drain: true,
            used: None,
        }];
        let groups = vec![single, mirrored];
        let map = ClusterMap { epoch: Epoch(7), targets, groups, ..ClusterMap::default() };
        let stored = serde_json::to_vec(&map).unwrap();
        let again = restored_record(MAP_KEY, &stored, 1_800_000_000).unwrap().unwrap();
        let again: ClusterMap = serde_json::from_slice(&again).unwrap();
        assert_eq!(again.epoch, Epoch(1_800_000_000 << 20));
        let map = restored_record(MAP_KEY, &stored, 0).unwrap().unwrap();
        let map: ClusterMap = serde_json::from_slice(&map).unwrap();
        assert_eq!(map.epoch, Epoch(7 + (1 << 30)));
        assert_eq!((map.groups[0].since, map.groups[1].since), (Epoch(0), map.epoch));
        assert!(was_restored_between(Epoch(7), map.epoch) && !was_restored_between(Epoch(7), Epoch(1000)));
        assert!(!map.targets[0].drain, "nothing moves by itself");
        let numbers = NextNumbers { next_node: 3, next_target: 9, next_pool: u16::MAX, next_group: 5 };
        let numbers =
            restored_record(NUMBERS_KEY, &serde_json::to_vec(&numbers).unwrap(), 0).unwrap().unwrap();
        let numbers: NextNumbers = serde_json::from_slice(&numbers).unwrap();
        assert_eq!(
            numbers,
            NextNumbers { next_node: 1003, next_target: 1009, next_pool: u16::MAX, next_group: 1005 }
        );
        assert!(restored_record(MAP_KEY, b"x", 0).unwrap().is_err());
        assert!(restored_record(b"\xff\xff\x12", b"x", 0).is_none());
    }
}
