//! Making, restoring and pruning backups.

use crate::support::{make_backup, snapshot, write_backup};
use backup::{
    Attached, Chain, Error, Plan, Progress, Reader, Restored, Rewrite, file_name, list, newest_first, prune,
    restore, verify,
};
use bytes::Bytes;
use kv::{Batch, Embedded, Engine};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

struct Fixture {
    dir: tempfile::TempDir,
    engine: Arc<Embedded>,
    model: Map,
    made: u32,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(Embedded::open(&dir.path().join("meta")).unwrap());
        Fixture { dir, engine, model: Map::new(), made: 0 }
    }

    fn write(&mut self, changes: impl IntoIterator<Item = (u32, Option<u32>)>) {
        let mut batch = Batch::default();
        for (key, value) in changes {
            let key = key.to_be_bytes().to_vec();
            match value {
                Some(value) => {
                    let value =
                        format!("value {value} of {key:?}").repeat(1 + value as usize % 40).into_bytes();
                    self.model.insert(key.clone(), value.clone());
                    batch.writes.push((key, Some(value.into())));
                }
                None => {
                    self.model.remove(&key);
                    batch.writes.push((key, None));
                }
            }
        }
        self.engine.apply(&[batch]).unwrap();
    }

    fn copy(&mut self, base: Option<&Path>) -> PathBuf {
        self.made += 1;
        let created_s = 1_700_000_000 + self.made as i64;
        let id = format!("{:032x}", 0xabcdef00 + self.made);
        let plan = Plan {
            path: self.dir.path().join(file_name(created_s, &format!("{:06}", self.made), base.is_none())),
            id,
            cluster: "cluster".into(),
            name: "name".into(),
            partitions: 4,
            created_s,
            version: "1".into(),
            base: base.map(|base| Chain::find(base).unwrap()),
            files: vec![Attached { name: "weft.toml".into(), mode: 0o600, content: b"who".to_vec() }],
        };
        let foot = make_backup(&self.engine, &plan).unwrap();
        assert_eq!(foot.keys, self.model.len() as u64);
        plan.path
    }
}

struct AsItIs;

impl Rewrite for AsItIs {
    fn record(&mut self, _: &[u8], value: Bytes) -> types::Result<Option<Bytes>> {
        Ok(Some(value))
    }

    fn additional_records(&mut self) -> types::Result<Vec<(Vec<u8>, Bytes)>> {
        Ok(Vec::new())
    }
}

fn restored(copy: &Path, to: &Path) -> Result<Restored, Error> {
    restore(&Chain::find(copy)?, to, &mut AsItIs, 1_800_000_000, &Progress::default())
}

fn all(engine: &Path) -> Map {
    let engine = Embedded::open(engine).unwrap();
    let pairs = engine.scan(&[], &[0xFF; 9], usize::MAX).unwrap();
    pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = (u32, Option<u32>)> {
    range.map(|n| (n, Some(n)))
}

#[test]
fn every_backup_of_a_chain_can_be_restored() {
    let mut place = Fixture::new();
    place.write(numbers(0..5000));
    let full = place.copy(None);
    let first = place.model.clone();
    place.write((0..5000).step_by(7).map(|n| (n, Some(n + 1))));
    place.write((1..5000).step_by(11).map(|n| (n, None)));
    place.write(numbers(6000..6100));
    let second_copy = place.copy(Some(&full));
    let second = place.model.clone();
    // Created again, changed back, and no change at all.
    place.write(numbers(0..40).chain((6050..6100).map(|n| (n, None))));
    let third_copy = place.copy(Some(&second_copy));
    let third = place.model.clone();
    let same_copy = place.copy(Some(&third_copy));
    let to = place.dir.path().join("restored");
    for (copy, expected) in
        [(&full, &first), (&second_copy, &second), (&third_copy, &third), (&same_copy, &third)]
    {
        let done = restored(copy, &to).unwrap();
        assert_eq!(done.keys, expected.len() as u64);
        assert!(all(&to) == *expected, "{}", copy.display());
    }
    let bytes = |path: &Path| path.metadata().unwrap().len();
    assert!(bytes(&second_copy) * 4 < bytes(&full) && bytes(&same_copy) < 2000);
    assert_eq!(Reader::open(&same_copy).unwrap().files()[0].content, b"who");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(full.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn restore_keeps_the_previous_engine() {
    let mut place = Fixture::new();
    place.write(numbers(0..10));
    let copy = place.copy(None);
    let to = place.dir.path().join("restored");
    assert_eq!(restored(&copy, &to).unwrap().previous_engine, None);
    let other = Batch { writes: vec![(b"later".to_vec(), Some("x".into()))], ..Batch::default() };
    Embedded::open(&to).unwrap().apply(&[other]).unwrap();
    let before = restored(&copy, &to).unwrap().previous_engine.unwrap();
    assert!(before.to_str().unwrap().ends_with("restored.before-20270115T080000Z"), "{before:?}");
    assert!(all(&before).contains_key(&b"later"[..]) && all(&to) == place.model);
    let again = restored(&copy, &to).unwrap().previous_engine.unwrap();
    assert!(again != before && all(&before).contains_key(&b"later"[..]));
    assert!(!place.dir.path().join("restored.restoring").exists());
}

#[test]
fn a_flipped_byte_anywhere_in_a_copy_is_refused_before_anything_changes() {
    let mut place = Fixture::new();
    place.write(numbers(0..200));
    let full = place.copy(None);
    place.write(numbers(100..300));
    let changes = place.copy(Some(&full));
    let to = place.dir.path().join("restored");
    restored(&full, &to).unwrap();
    let unharmed = all(&to);
    for copy in [&full, &changes] {
        let content = fs::read(copy).unwrap();
        let step = (content.len() / 200).max(1);
        for at in (0..400).chain((400..content.len()).step_by(step)).chain(content.len() - 200..content.len())
        {
            let mut flipped = content.clone();
            flipped[at] ^= 0x04;
            fs::write(copy, &flipped).unwrap();
            assert!(restored(&changes, &to).is_err(), "byte {at} of {}", copy.display());
        }
        for length in [0, 7, 8, 100, content.len() / 2, content.len() - 1] {
            fs::write(copy, &content[..length]).unwrap();
            assert!(restored(&changes, &to).is_err(), "cut at {length}");
        }
        fs::write(copy, [&content[..], b"x"].concat()).unwrap();
        assert!(restored(&changes, &to).is_err());
        fs::write(copy, &content).unwrap();
    }
    assert!(all(&to) == unharmed);
    assert!(fs::read_dir(place.dir.path()).unwrap().count() == 4);
    restored(&changes, &to).unwrap();
}

#[test]
fn copies_that_do_not_belong_together_are_refused() {
    let mut place = Fixture::new();
    place.write(numbers(0..100));
    let full = place.copy(None);
    place.write(numbers(50..150));
    let changes = place.copy(Some(&full));
    assert_eq!(Chain::find(&changes).unwrap().verify().unwrap().keys, 150);
    let away = place.dir.path().join("away");
    fs::rename(&full, &away).unwrap();
    assert!(matches!(Chain::find(&changes), Err(Error::MissingBase { .. })));
    // The incremental backup alone is intact.
    assert_eq!(verify(&changes).unwrap().puts, 50);
    let none = place.dir.path().join("none");
    fs::write(&none, "something else that is long enough").unwrap();
    assert!(matches!(Chain::find(&none), Err(Error::NotABackup { .. })));
    let folder = Chain::find(none.parent().unwrap()).err().unwrap();
    assert!(folder.hint().contains("one of the backups in it"), "{folder}: {}", folder.hint());
    fs::rename(&away, &full).unwrap();
    // A backup with the same id and different content.
    let mut other = Fixture::new();
    other.write(numbers(0..99));
    let impostor = other.copy(None);
    fs::copy(&impostor, &full).unwrap();
    let refused = Chain::find(&changes).unwrap().verify().unwrap_err();
    assert!(refused.to_string().contains("with its bases"), "{refused}");
}

#[test]
fn pruning_keeps_the_newest_with_their_bases() {
    let mut place = Fixture::new();
    place.write(numbers(0..10));
    let first = place.copy(None);
    let second = place.copy(Some(&first));
    let third = place.copy(None);
    let fourth = place.copy(Some(&third));
    let fifth = place.copy(Some(&fourth));
    let names = |dir: &Path| list(dir).unwrap().into_iter().map(|entry| entry.path).collect::<Vec<_>>();
    let dir = place.dir.path();
    assert_eq!(names(dir), [&first, &second, &third, &fourth, &fifth].map(Clone::clone));
    assert!(prune(dir, "another", 1, i64::MAX).unwrap().is_empty());
    assert_eq!(prune(dir, "cluster", 4, i64::MAX).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(prune(dir, "cluster", 1, i64::MAX).unwrap(), [second, first]);
    assert_eq!(names(dir), [third, fourth, fifth]);
    assert!(list(&dir.join("not there")).unwrap().is_empty());
}

/// The clock was ahead when they were made, and a later backup has one of them as its base.
#[test]
fn future_backups_count_as_the_oldest_and_stay_as_bases() {
    let mut place = Fixture::new();
    place.write(numbers(0..10));
    let now = place.copy(None);
    place.made = 1_000_000;
    let ahead = place.copy(None);
    let further = place.copy(Some(&ahead));
    let alone = place.copy(None);
    place.made = 1;
    let since = place.copy(Some(&further));
    let newest = place.copy(None);
    let dir = place.dir.path();
    let latest_s = 1_700_000_000 + 1000;
    let order = newest_first(list(dir).unwrap(), "cluster", latest_s);
    let order: Vec<&PathBuf> = order.iter().map(|(path, _)| path).collect();
    assert_eq!(order, [&newest, &since, &now, &alone, &further, &ahead]);
    assert_eq!(prune(dir, "cluster", 4, latest_s).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(prune(dir, "cluster", 3, latest_s).unwrap(), [alone]);
    Chain::find(&since).unwrap().verify().unwrap();
    assert_eq!(prune(dir, "cluster", 1, latest_s).unwrap(), [since, further, now, ahead]);
}

#[test]
fn a_copy_is_not_written_over_another() {
    let mut place = Fixture::new();
    place.write(numbers(0..10));
    let first = place.copy(None);
    let kept = fs::read(&first).unwrap();
    place.made -= 1;
    let plan = Plan {
        path: first.clone(),
        id: "f".repeat(32),
        cluster: "cluster".into(),
        name: "name".into(),
        partitions: 4,
        created_s: 1,
        version: "1".into(),
        base: None,
        files: vec![],
    };
    let refused = make_backup(&place.engine, &plan);
    assert!(matches!(refused, Err(Error::Exists { .. })));
    assert_eq!(fs::read(&first).unwrap(), kept);
}

/// Pairs of keys that are always changed together, by one counting writer.
#[test]
fn a_backup_is_consistent_during_writes() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(Embedded::open(&dir.path().join("meta")).unwrap());
    let put = |count: u64| {
        // Far apart in the order of keys, with thousands of others between.
        let number = (count % 3000).to_be_bytes();
        let value: Bytes = count.to_be_bytes().to_vec().into();
        let write = |side: u8| ([&[side][..], &number].concat(), Some(value.clone()));
        let writes = vec![write(0), write(9), (b"\x05count".to_vec(), Some(value.clone()))];
        engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
    };
    (0..3000).for_each(put);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(3000));
    let copies = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                put(written.load(SeqCst));
                written.fetch_add(1, SeqCst);
            }
        });
        let mut copies: Vec<(PathBuf, u64, u64)> = Vec::new();
        for number in 0..5u32 {
            while written.load(SeqCst) < 3000 + 500 * u64::from(number) {
                std::thread::yield_now();
            }
            let path = dir.path().join(format!("{number}.weftcopy"));
            let plan = Plan {
                path: path.clone(),
                id: format!("{number:032}"),
                cluster: "cluster".into(),
                name: "name".into(),
                partitions: 4,
                created_s: number.into(),
                version: "1".into(),
                base: copies.last().map(|(last, ..)| Chain::find(last).unwrap()),
                files: vec![],
            };
            let from = written.load(SeqCst);
            let snapshot = snapshot(&engine);
            let to = written.load(SeqCst);
            write_backup(snapshot, &plan).unwrap();
            copies.push((path, from, to));
        }
        stop.store(true, SeqCst);
        copies
    });
    for (copy, from, to) in copies {
        let at = dir.path().join("restored");
        restored(&copy, &at).unwrap();
        let all = all(&at);
        let side = |side: u8| {
            all.iter().filter(|(key, _)| key[0] == side).map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        assert!(side(0).len() == 3000 && side(0) == side(9));
        let count = u64::from_be_bytes(all[&b"\x05count"[..]].clone().try_into().unwrap());
        // Writes before the snapshot are in it, later ones aren't; one may have been in flight.
        assert!((from - 1..=to).contains(&count), "{count} of {from} to {to}");
        let newest = side(0).into_iter().map(|value| u64::from_be_bytes(value.try_into().unwrap())).max();
        assert_eq!(newest, Some(count));
    }
}
