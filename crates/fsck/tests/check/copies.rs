//! Files in mirrored groups.

use crate::support::{Fs, HASH_KEY, PARTITIONS, on_a_core};
use chunkstore::{Durability, IoPath, Store};
use fsck::{Kind, Later, Online, Report, Seat, Targets, Verdict};
use rt::IoBuf;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use types::{ByteRange, Errno, Error, GroupId, InodeId, MemberState, Result, TargetId};

const CHUNK: usize = 1024 * 1024;

/// A file of two stripes, one in each group, which is the same on all copies.
async fn mirrored(fs: &mut Fs) -> InodeId {
    let dir = fs.mkdir(InodeId::ROOT, "d");
    let change = wire::PatternChange { scheme: Some("mirror:2".into()), ..Default::default() };
    fs.run(wire::MetaOp::SetPattern { dir, change });
    let ino = fs.chunked(dir, "f", 2 * CHUNK).await;
    assert_eq!(fs.layout(ino).groups.len(), 2);
    fs.settle().await;
    ino
}

async fn put(store: &Arc<Store>, name: InodeId, at: usize, byte: u8) {
    let data = IoBuf::from_slice(&[byte; 4096]);
    store.write(name, at as u64, &data, IoPath::Cached, Durability::Later).await.unwrap();
}

/// The copies of a cluster that is served, but for a target that doesn't answer.
struct Served<'a> {
    fs: &'a Fs,
    silent: Option<TargetId>,
}

impl Served<'_> {
    fn store(&self, seat: Seat) -> Result<&Arc<Store>> {
        if self.silent == Some(seat.target) {
            return Err(Error::new(Errno::EHOSTDOWN, "its node is down"));
        }
        Ok(match seat.group {
            Some(group) => &self.fs.copies[&(seat.target, group)],
            None => &self.fs.stores[&seat.target],
        })
    }

    async fn check(&self) -> Report {
        let engine = self.fs.frozen();
        let freeze = || Ok(engine.clone());
        let cluster = Online {
            freeze: &freeze,
            partitions: PARTITIONS,
            hash_key: HASH_KEY,
            map: &self.fs.map,
            targets: self,
        };
        fsck::check_online(&cluster).await.unwrap()
    }
}

impl Targets for Served<'_> {
    fn len(&self, seat: Seat, ino: InodeId) -> Later<'_, u64> {
        Box::pin(async move { Ok(self.store(seat)?.stat(ino).await.unwrap().len) })
    }

    fn read(&self, seat: Seat, ino: InodeId, range: ByteRange) -> Later<'_, u32> {
        Box::pin(async move {
            let buf = IoBuf::alloc(range.len() as usize);
            let read = self.store(seat)?.read(ino, range.start, &buf, IoPath::Cached).await;
            read.map(|_| types::crc32c(buf.as_slice())).map_err(|_| Errno::EIO.into())
        })
    }

    fn rest(&self) -> Later<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn a_cluster_that_runs_has_its_copies_compared() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let report = Served { fs: &fs, silent: None }.check().await;
        assert_eq!((report.verdict(), report.chunk_files), (Verdict::Clean, 4), "{:?}", report.findings);
        put(copy(&fs, ino, 1), ino, 8192, 0xee).await;
        let report = Served { fs: &fs, silent: None }.check().await;
        let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::CopiesDiffer], "{:?}", report.findings);
        assert_eq!(report.findings[0].range, Some(ByteRange::new(0, CHUNK as u64)));
        // Damage of the second copy isn't hidden by the first.
        let store = copy(&fs, ino, 1);
        let file = OpenOptions::new().write(true).open(Store::chunk_file_path(store.dir(), ino)).unwrap();
        file.write_all_at(b"flipped", 8192 + 10).unwrap();
        let report = Served { fs: &fs, silent: None }.check().await;
        assert!(report.findings.iter().any(|finding| finding.kind == Kind::DamagedContent
            && finding.cause.contains(&format!("target {} ", store.target()))));
    });
}

#[test]
fn a_copy_that_does_not_answer_is_said_and_no_damage_while_there_is_another() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let silent = copy(&fs, ino, 0).target();
        let report = Served { fs: &fs, silent: Some(silent) }.check().await;
        assert_eq!(report.verdict(), Verdict::Clean, "{:?}", report.findings);
        assert_eq!(report.unjudged.len(), 1, "{:?}", report.unjudged);
        assert!(report.unjudged[0].contains("its node is down"));
        // Its partner is behind: nothing can be said of the group.
        let id = fs.layout(ino).groups[0];
        let group = fs.map.groups.iter_mut().find(|group| group.id == id).unwrap();
        group.states = vec![MemberState::Good, MemberState::NeedsResync];
        let report = Served { fs: &fs, silent: Some(silent) }.check().await;
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        assert_eq!(report.findings[0].object, format!("group {id}"));
    });
}

/// A copy of the first stripe.
fn copy(fs: &Fs, ino: InodeId, which: usize) -> &Arc<Store> {
    fs.stores_of(&fs.layout(ino), 0)[which]
}

#[test]
fn equal_copies_are_in_order() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let report = fs.check(false).await;
        assert_eq!((report.verdict(), report.pending), (Verdict::Clean, 0), "{:?}", report.findings);
        assert!(report.unjudged.is_empty());
        assert_eq!(report.chunk_files, 4, "two stripes, two copies of each");
        // Nothing of it is on the targets themselves.
        for store in fs.stores.values() {
            assert!(!store.list().await.unwrap().contains(&ino));
        }
    });
}

#[test]
fn copies_that_differ_are_found_with_path_range_and_targets() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        put(copy(&fs, ino, 1), ino, 8192, 0xee).await;
        fs.settle().await;
        let finding = fs.finds_and_leaves(Kind::CopiesDiffer).await;
        assert_eq!((finding.object.as_str(), finding.range), ("/d/f", Some(ByteRange::at(8192, 4096))));
        let [one, two] = [0, 1].map(|which| format!("target {} ", copy(&fs, ino, which).target()));
        assert!(finding.cause.contains(&one) && finding.cause.contains(&two), "{}", finding.cause);
    });
}

#[test]
fn what_is_noted_is_left_to_the_restart() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let store = copy(&fs, ino, 1);
        let hold = store.hold_notes();
        put(store, ino, 8192, 0xee).await;
        let report = fs.check(false).await;
        assert_eq!((report.verdict(), report.pending), (Verdict::Clean, 1), "{:?}", report.findings);
        drop(hold);
    });
}

#[test]
fn copies_of_different_lengths_are_found() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        copy(&fs, ino, 0).truncate(ino, 5000).await.unwrap();
        fs.settle().await;
        let finding = fs.finds_and_leaves(Kind::CopiesDiffer).await;
        assert!(finding.cause.contains("5000") && finding.cause.contains("1048576"), "{}", finding.cause);
    });
}

#[test]
fn a_copy_that_is_gone_is_missed() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        copy(&fs, ino, 1).delete(ino).await.unwrap();
        fs.settle().await;
        let finding = fs.finds_and_leaves(Kind::MissingChunkFile).await;
        let target = copy(&fs, ino, 1).target();
        assert!(finding.cause.contains(&format!("target {target} ")), "{}", finding.cause);
    });
}

#[test]
fn damage_of_one_copy_is_told_of_that_copy() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let store = copy(&fs, ino, 1);
        let file = OpenOptions::new().write(true).open(Store::chunk_file_path(store.dir(), ino)).unwrap();
        file.write_all_at(b"flipped", 8192 + 10).unwrap();
        let finding = fs.finds_and_leaves(Kind::DamagedContent).await;
        assert!(finding.cause.contains(&format!("target {} ", store.target())), "{}", finding.cause);
        assert!(finding.remedy.contains("another copy"), "{}", finding.remedy);
    });
}

#[test]
fn strays_of_groups_and_of_targets_are_told_apart() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        // The target has a file of its own by the name of one that is in its group.
        put(&fs.stores[&copy(&fs, ino, 0).target()], ino, 0, 1).await;
        // The group has a file that nobody has.
        put(copy(&fs, ino, 1), InodeId(4242), 0, 1).await;
        fs.settle().await;
        let findings = fs.finds_and_repairs(Kind::StrayChunkFile).await;
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(copy(&fs, ino, 0).stat(ino).await.unwrap().len > 0);
    });
}

#[test]
fn a_copy_that_is_behind_is_no_damage_but_said() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let layout = fs.layout(ino);
        copy(&fs, ino, 1).delete(ino).await.unwrap();
        fs.settle().await;
        let group = fs.map.groups.iter_mut().find(|group| group.id == layout.groups[0]).unwrap();
        group.states = vec![MemberState::Good, MemberState::NeedsResync];
        let report = fs.check(true).await;
        assert_eq!(report.verdict(), Verdict::Clean, "{:?}", report.findings);
        assert_eq!(report.unjudged.len(), 1);
        assert!(report.unjudged[0].contains("needs-resync"), "{:?}", report.unjudged);
    });
}

#[test]
fn what_a_group_has_left_on_a_target_is_nobodys() {
    on_a_core(async |mut fs| {
        let (target, gone) = (TargetId(1), GroupId(77));
        let left = Store::open_group(&fs.stores[&target], gone, true).await.unwrap().unwrap().0;
        put(&left, InodeId(4242), 0, 1).await;
        fs.copies.insert((target, gone), left);
        fs.finds_and_repairs(Kind::StrayChunkFile).await;
    });
}
