//! Files in mirrored groups.

use super::support::{FIRST_UNALLOCATED, Fs, HASH_KEY, PARTITIONS, on_a_core};
use chunkstore::{Durability, IfAbsent, IoPath, Orphan, Store};
use fsck::{
    CheckOptions, CheckOutcome, CheckReport, Discard, InventoryPage, InventoryPosition, Kind, LocalTargets,
    Loss, MissingChunkFile, Online, ReplicaLocation, Subject, TargetFuture, Targets,
};
use rt::IoBuf;
use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use types::{
    ByteRange, ChunkFileId, ChunkSlot, Errno, Error, GroupId, InodeId, MemberState, Result, TargetId,
};

const CHUNK: usize = 1024 * 1024;

/// Creates a file of two stripes, one in each group, with equal replicas.
async fn mirrored(fs: &mut Fs) -> InodeId {
    let dir = fs.mkdir(InodeId::ROOT, "d");
    let change = wire::PatternChange { scheme: Some("mirror:2".into()), ..Default::default() };
    fs.run(wire::MetaOp::SetPattern { dir, change });
    let ino = fs.chunked(dir, "f", 2 * CHUNK).await;
    assert_eq!(fs.layout(ino).groups.len(), 2);
    fs.settle().await;
    ino
}

async fn put(store: &Arc<Store>, name: ChunkFileId, at: usize, byte: u8) {
    let data = IoBuf::from_slice(&[byte; 4096]);
    store.write(name, at as u64, &data, IoPath::Cached, Durability::Later).await.unwrap();
}

/// The replicas of a running cluster, with a target that doesn't answer.
struct Served<'a> {
    fs: &'a Fs,
    subject: &'a Subject<'a>,
    unreachable: Option<TargetId>,
    /// Pauses until the replicas are reconciled after a crash.
    pauses_left: &'a Cell<usize>,
    /// Changes by others while chunk files are listed.
    meanwhile: &'a dyn Fn(),
}

impl Served<'_> {
    fn local(&self, location: ReplicaLocation) -> Result<LocalTargets<'_>> {
        if self.unreachable == Some(location.target) {
            return Err(Error::new(Errno::EHOSTDOWN, "its node is down"));
        }
        if self.pauses_left.get() > 0 {
            return Err(Error::new(Errno::EIO, "it must be resynced after a crash"));
        }
        Ok(LocalTargets(self.subject))
    }

    async fn check(fs: &Fs, unreachable: Option<TargetId>) -> CheckReport {
        Served::check_with(fs, unreachable, CheckOptions::default()).await
    }

    async fn check_with(fs: &Fs, unreachable: Option<TargetId>, options: CheckOptions<'_>) -> CheckReport {
        Served::check_after(fs, unreachable, options, 0).await
    }

    /// Checks after a crash, with this many pauses until the replicas are reconciled.
    async fn check_after(
        fs: &Fs,
        unreachable: Option<TargetId>,
        options: CheckOptions<'_>,
        pauses: usize,
    ) -> CheckReport {
        let (subject, unseen) = (fs.subject(), Cell::new(pauses));
        Served { fs, subject: &subject, unreachable, pauses_left: &unseen, meanwhile: &|| () }
            .run(options)
            .await
    }

    /// Checks while others change the file system.
    async fn check_while(fs: &Fs, options: CheckOptions<'_>, meanwhile: &dyn Fn()) -> CheckReport {
        let (subject, unseen) = (fs.subject(), Cell::new(0));
        Served { fs, subject: &subject, unreachable: None, pauses_left: &unseen, meanwhile }
            .run(options)
            .await
    }

    async fn run(self, options: CheckOptions<'_>) -> CheckReport {
        self.with(options, async |cluster| fsck::check_online(cluster).await.unwrap()).await
    }

    /// Takes the inventory of the whole name space.
    async fn inventory(fs: &Fs, unreachable: Option<TargetId>) -> InventoryPage {
        let (subject, unseen) = (fs.subject(), Cell::new(0));
        let served = Served { fs, subject: &subject, unreachable, pauses_left: &unseen, meanwhile: &|| () };
        let (mut all, mut position) = (InventoryPage::default(), InventoryPosition::START);
        let page = async |cluster: &Online<'_>| loop {
            let Some((page, next)) = fsck::inventory_page(cluster, &position).await.unwrap() else { break };
            position = next;
            all.files += page.files;
            all.missing.extend(page.missing);
            all.unreachable.extend(page.unreachable);
        };
        served.with(CheckOptions::default(), page).await;
        all
    }

    async fn with<T>(self, options: CheckOptions<'_>, run: impl AsyncFnOnce(&Online<'_>) -> T) -> T {
        let served = self;
        let cluster = Online {
            metadata: &*served.fs.metadata,
            partitions: PARTITIONS,
            hash_key: HASH_KEY,
            map: &served.fs.map,
            targets: &served,
            options,
            progress: &|_, _, _| (),
        };
        run(&cluster).await
    }
}

impl Targets for Served<'_> {
    fn len(&self, location: ReplicaLocation, ino: ChunkFileId) -> TargetFuture<'_, u64> {
        Box::pin(async move { Targets::len(&self.local(location)?, location, ino).await })
    }

    fn read(&self, location: ReplicaLocation, ino: ChunkFileId, range: ByteRange) -> TargetFuture<'_, u32> {
        Box::pin(async move { Targets::read(&self.local(location)?, location, ino, range).await })
    }

    fn list(
        &self,
        location: ReplicaLocation,
        from: ChunkFileId,
    ) -> TargetFuture<'_, (Vec<ChunkFileId>, Option<ChunkFileId>)> {
        Box::pin(async move {
            (self.meanwhile)();
            Targets::list(&self.local(location)?, location, from).await
        })
    }

    fn repair(
        &self,
        from: ReplicaLocation,
        to: TargetId,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> TargetFuture<'_, ()> {
        Box::pin(async move { Targets::repair(&self.local(from)?, from, to, ino, range).await })
    }

    fn give_up(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> TargetFuture<'_, Vec<ByteRange>> {
        Box::pin(async move { Targets::give_up(&self.local(location)?, location, ino, range).await })
    }

    fn discard(&self, location: ReplicaLocation, ino: ChunkFileId, how: Discard) -> TargetFuture<'_, ()> {
        Box::pin(async move { Targets::discard(&self.local(location)?, location, ino, how).await })
    }

    fn pause(&self) -> TargetFuture<'_, ()> {
        Box::pin(async {
            self.pauses_left.set(self.pauses_left.get().saturating_sub(1));
            Ok(())
        })
    }
}

#[test]
fn replicas_of_a_running_cluster_are_compared() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let report = Served::check(&fs, None).await;
        assert_eq!((report.outcome(), report.chunk_files), (CheckOutcome::Clean, 4), "{:?}", report.findings);
        put(copy(&fs, ino, 1), ino.first_chunk_file(), 8192, 0xee).await;
        let report = Served::check(&fs, None).await;
        let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::CopiesDiffer], "{:?}", report.findings);
        assert_eq!(report.findings[0].range, Some(ByteRange::new(0, CHUNK as u64)));
        // Damage to the second replica isn't hidden by the first.
        let store = copy(&fs, ino, 1);
        let file = OpenOptions::new()
            .write(true)
            .open(Store::chunk_file_path(store.dir(), ino.first_chunk_file()))
            .unwrap();
        file.write_all_at(b"flipped", 8192 + 10).unwrap();
        let report = Served::check(&fs, None).await;
        assert!(report.findings.iter().any(|finding| finding.kind == Kind::DamagedContent
            && finding.cause.contains(&format!("target {} ", store.target()))));
    });
}

#[test]
fn an_unreachable_replica_is_reported_and_no_damage() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let unreachable = copy(&fs, ino, 0).target();
        let report = Served::check(&fs, Some(unreachable)).await;
        assert_eq!(report.outcome(), CheckOutcome::Clean, "{:?}", report.findings);
        assert_eq!(report.unjudged.len(), 1, "{:?}", report.unjudged);
        assert!(report.unjudged[0].contains("its node is down"));
        // Its partner is not in sync: the group can't be checked.
        let id = fs.layout(ino).groups[0];
        let group = fs.map.groups.iter_mut().find(|group| group.id == id).unwrap();
        group.states = vec![MemberState::InSync, MemberState::NeedsResync];
        let report = Served::check(&fs, Some(unreachable)).await;
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        assert_eq!(report.findings[0].object, format!("group {id}"));
    });
}

/// Returns a replica of the first stripe.
fn copy(fs: &Fs, ino: InodeId, which: usize) -> &Arc<Store> {
    fs.stores_of(&fs.layout(ino), 0)[which]
}

/// Asserts that the check finds one fault and repairs it from the other replica.
async fn finds_and_repairs_replica(fs: &mut Fs, kind: Kind, ino: InodeId) -> fsck::Finding {
    let findings = fs.finds_and_repairs(kind).await;
    fs.settle().await;
    assert_eq!(fs.check(false).await.findings, []);
    right(fs, ino).await;
    findings[0].clone()
}

/// Asserts that all replicas hold what was written.
async fn right(fs: &Fs, ino: InodeId) {
    for stripe in 0..2 {
        for content in fs.contents(ino, stripe, CHUNK).await {
            assert!(
                content
                    .iter()
                    .enumerate()
                    .all(|(at, byte)| *byte == ((stripe * CHUNK + at) / 1000) as u8 | 1)
            );
        }
    }
}

#[test]
fn a_running_cluster_is_repaired_from_the_other_replica() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let spoil = |which: usize, at: u64| {
            let file = Store::chunk_file_path(copy(&fs, ino, which).dir(), ino.first_chunk_file());
            OpenOptions::new().write(true).open(file).unwrap().write_all_at(b"flipped", at).unwrap();
        };
        spoil(0, 8192);
        spoil(1, 20_000);
        spoil(1, CHUNK as u64 - 100);
        put(copy(&fs, ino, 1), ChunkFileId(4242), 0, 1).await;
        put(&fs.stores[&TargetId(3)], ChunkFileId(4243), 0, 1).await;
        let found = Served::check(&fs, None).await;
        let kinds: Vec<Kind> = found.findings.iter().map(|finding| finding.kind).collect();
        let (damaged, stray) = (Kind::DamagedContent, Kind::StrayChunkFile);
        assert_eq!(kinds, [damaged, damaged, damaged, stray, stray], "{:?}", found.findings);
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        let repaired = Served::check_with(&fs, None, repair).await;
        assert_eq!(repaired.outcome(), CheckOutcome::Repaired, "{:?}", repaired.findings);
        assert_eq!(Served::check(&fs, None).await.findings, []);
        right(&fs, ino).await;
    });
}

#[test]
fn one_copy_that_is_too_long_is_cut_while_the_cluster_runs_and_two_are_not() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        put(copy(&fs, ino, 1), ino.first_chunk_file(), CHUNK, 0xee).await;
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        let cut = Served::check_with(&fs, None, repair).await;
        assert_eq!(cut.outcome(), CheckOutcome::Repaired, "{:?}", cut.findings);
        assert_eq!(Served::check(&fs, None).await.findings, []);
        right(&fs, ino).await;
        let is_told = |found: &fsck::Finding| found.kind == Kind::LongChunkFile && found.remedy.is_empty();
        assert!(cut.findings.iter().any(is_told), "{:?}", cut.findings);
        for which in [0, 1] {
            put(copy(&fs, ino, which), ino.first_chunk_file(), CHUNK, 0xee).await;
        }
        let left = Served::check_with(&fs, None, repair).await;
        assert_eq!(left.outcome(), CheckOutcome::Damaged);
        assert!(left.findings.iter().all(|finding| finding.kind == Kind::LongChunkFile && !finding.repaired));
        assert!(left.findings[0].remedy.contains("replace it by the copy"), "{:?}", left.findings);
    });
}

/// It is not set to the length of the other replica, either.
#[test]
fn a_too_long_replica_is_truncated_only_after_a_copy() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        put(copy(&fs, ino, 1), ino.first_chunk_file(), CHUNK, 0xee).await;
        fs.settle().await;
        let (store, long) = (copy(&fs, ino, 1), CHUNK as u64 + 4096);
        let dir = fs.stores[&store.target()].dir();
        let kept = Orphan { group: store.group(), ino: ino.first_chunk_file(), bytes: long };
        let place = kept.path(dir);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, "another").unwrap();
        let left = fs.check(true).await;
        assert!(left.findings.iter().any(|finding| finding.kind == Kind::LongChunkFile), "{left:?}");
        assert!(left.findings.iter().all(|finding| !finding.repaired), "{left:?}");
        assert_eq!(store.stat(ino.first_chunk_file()).await.unwrap().len, long);
        std::fs::remove_file(&place).unwrap();
        let repaired = fs.check(true).await;
        assert_eq!(repaired.outcome(), CheckOutcome::Repaired, "{repaired:?}");
        assert_eq!(store.stat(ino.first_chunk_file()).await.unwrap().len, CHUNK as u64);
        assert_eq!(Orphan::list(dir).await.unwrap(), [kept]);
    });
}

#[test]
fn lost_content_is_given_up_only_with_all_replicas_present() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        for which in [0, 1] {
            let file = Store::chunk_file_path(copy(&fs, ino, which).dir(), ino.first_chunk_file());
            OpenOptions::new().write(true).open(file).unwrap().write_all_at(b"flipped", 8192).unwrap();
        }
        let note = |_: &Loss| Ok(());
        let forget = CheckOptions {
            repair: true,
            loss_recorder: Some(&note),
            below: Some("/d"),
            ..CheckOptions::default()
        };
        let group = fs.map.groups.iter_mut().find(|group| group.id == GroupId(5)).unwrap();
        group.states = vec![MemberState::InSync, MemberState::NeedsResync];
        let other = fs.map.groups.iter_mut().find(|group| group.id == GroupId(6)).unwrap();
        other.states = vec![MemberState::InSync, MemberState::NeedsResync];
        let kept = Served::check_with(&fs, None, forget).await;
        assert_eq!(kept.outcome(), CheckOutcome::Damaged);
        assert!(kept.findings[0].remedy.contains("aren't in sync"), "{:?}", kept.findings);
        fs.map.groups.iter_mut().for_each(|group| group.states.clear());
        let forgotten = Served::check_with(&fs, None, forget).await;
        assert_eq!(forgotten.outcome(), CheckOutcome::Repaired, "{:?}", forgotten.findings);
        assert_eq!(Served::check(&fs, None).await.findings, []);
        for content in fs.contents(ino, 0, CHUNK).await {
            assert_eq!(content[8192..12_288], [0; 4096]);
            assert!(content[..8192].iter().chain(&content[12_288..]).all(|byte| *byte != 0));
        }
    });
}

/// For a file with holes only the known lengths of its chunk files show it.
#[test]
fn a_chunk_file_of_known_length_is_missed_while_the_cluster_runs() {
    on_a_core(async |fs| {
        let chunk = CHUNK as u64;
        let ino = fs.chunked(InodeId::ROOT, "sparse", 2 * CHUNK).await;
        fs.edit_inode(ino, |inode| {
            (inode.size, inode.blocks, inode.known_end) = (9 * chunk, 8, 2 * chunk);
        });
        let found = async || {
            let report = Served::check(&fs, None).await;
            report.findings.iter().map(|finding| finding.kind).collect::<Vec<Kind>>()
        };
        assert_eq!(found().await, []);
        let store = fs.store_of(&fs.layout(ino), 1);
        store.truncate(ino.first_chunk_file(), chunk / 2).await.unwrap();
        assert_eq!(found().await, [Kind::ShortChunkFile]);
        store.delete(ino.first_chunk_file()).await.unwrap();
        assert_eq!(found().await, [Kind::MissingChunkFile]);
    });
}

/// Not even its target knows that it ever was there: only the metadata does.
#[test]
fn an_inventory_finds_chunk_files_that_are_lost_with_their_checksums() {
    on_a_core(async |mut fs| {
        let whole = fs.chunked(InodeId::ROOT, "whole", 2 * CHUNK).await;
        let ino = fs.chunked(InodeId::ROOT, "cut", 2 * CHUNK).await;
        fs.edit_inode(ino, |inode| inode.known_end = 2 * CHUNK as u64);
        let sparse = fs.chunked(InodeId::ROOT, "sparse", 2 * CHUNK).await;
        fs.edit_inode(sparse, |inode| {
            (inode.size, inode.blocks, inode.known_end) = (9 * CHUNK as u64, 8, CHUNK as u64);
        });
        let dir = fs.mkdir(InodeId::ROOT, "d");
        fs.run(wire::MetaOp::SetPattern {
            dir,
            change: wire::PatternChange { scheme: Some("mirror:2".into()), ..Default::default() },
        });
        let mirrored = fs.chunked(dir, "mirrored", 2 * CHUNK).await;
        fs.settle().await;
        let found = async || Served::inventory(&fs, None).await;
        let healthy = found().await;
        assert_eq!((healthy.files, &healthy.missing[..]), (4, &[][..]));
        let (cut, gone) = (fs.store_of(&fs.layout(ino), 0), fs.store_of(&fs.layout(ino), 1));
        cut.truncate(ino.first_chunk_file(), CHUNK as u64 / 2).await.unwrap();
        gone.delete(ino.first_chunk_file()).await.unwrap();
        let member = copy(&fs, mirrored, 1);
        member.delete(mirrored.first_chunk_file()).await.unwrap();
        // Nothing is required of this one.
        fs.store_of(&fs.layout(sparse), 1).delete(sparse.first_chunk_file()).await.unwrap();
        let missing = |ino, store: &Arc<Store>| MissingChunkFile { ino, target: store.target() };
        let expected = [missing(ino, cut), missing(ino, gone), missing(mirrored, member)];
        assert_eq!(found().await.missing, expected);
        let partial = Served::inventory(&fs, Some(gone.target())).await;
        let others: Vec<_> = expected.into_iter().filter(|found| found.target != gone.target()).collect();
        assert_eq!(partial.missing, others);
        assert_eq!(partial.unreachable.into_iter().collect::<Vec<_>>(), [gone.target()]);
        assert!(fs.layout(whole).groups.len() > 1);
    });
}

/// Its record is read again before any of its content is given up.
#[test]
fn content_of_a_changed_file_is_not_given_up() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        for which in [0, 1] {
            let file = Store::chunk_file_path(copy(&fs, ino, which).dir(), ino.first_chunk_file());
            let file = OpenOptions::new().write(true).open(file).unwrap();
            [8192, 40_960].into_iter().for_each(|at| file.write_all_at(b"flipped", at).unwrap());
        }
        let told = Cell::new(0);
        let note = |_: &Loss| {
            told.set(told.get() + 1);
            Ok(())
        };
        let forget = CheckOptions { repair: true, loss_recorder: Some(&note), ..CheckOptions::default() };
        let begins = || drop(fs.run(wire::MetaOp::BeginWrite { ino }));
        let report = Served::check_while(&fs, forget, &begins).await;
        assert_eq!((report.pending, report.findings), (1, vec![]), "somebody writes it");
        let (size, blocks) = (2 * CHUNK as u64, 2 * CHUNK as u64 / 512);
        fs.run(wire::MetaOp::EndWrite {
            ino,
            size,
            blocks,
            lens: Vec::new(),
            mtime: None,
            done: true,
            kill_suid_sgid: false,
        });
        let grows = || fs.edit_inode(ino, |inode| inode.size = size + 1);
        let report = Served::check_while(&fs, forget, &grows).await;
        assert_eq!((report.pending, report.findings, told.get()), (1, vec![], 0), "it is another one");
        fs.edit_inode(ino, |inode| inode.size = size);
        // Between one piece and the next.
        let grows = |_: &Loss| {
            told.set(told.get() + 1);
            fs.edit_inode(ino, |inode| inode.size = size + 1);
            Ok(())
        };
        let report =
            Served::check_with(&fs, None, CheckOptions { loss_recorder: Some(&grows), ..forget }).await;
        assert_eq!((report.pending, told.get()), (1, 1));
        assert!(report.findings.iter().all(|finding| finding.lost && !finding.repaired), "{report:?}");
        fs.edit_inode(ino, |inode| inode.size = size);
        let lost = fs.check(false).await.findings.into_iter().filter_map(|finding| finding.range);
        assert!(lost.into_iter().all(|range| range.start == 40_960));
    });
}

#[test]
fn orphans_are_kept_while_the_metadata_is_older() {
    on_a_core(async |fs| {
        let target = TargetId(1);
        put(&fs.stores[&target], ChunkFileId(FIRST_UNALLOCATED + 500), 0, 1).await;
        put(&fs.stores[&target], ChunkFileId(4242), 0, 1).await;
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        let report = Served::check_with(&fs, None, repair).await;
        assert_eq!((report.findings.len(), report.outcome()), (2, CheckOutcome::Damaged), "{report:?}");
        let is_told =
            |found: &fsck::Finding| found.cause.contains("older") && found.remedy.contains("restore");
        assert!(report.findings.iter().all(is_told), "{report:?}");
        assert_eq!(fs.stores[&target].list().await.unwrap().len(), 2);
        let accepting = CheckOptions { accept_loss: true, ..repair };
        let report = Served::check_with(&fs, None, accepting).await;
        assert_eq!(report.outcome(), CheckOutcome::Repaired, "{report:?}");
        assert_eq!(chunkstore::Orphan::list(fs.stores[&target].dir()).await.unwrap().len(), 2);
    });
}

/// The record that can't be read may name the file's chunk files.
#[test]
fn orphans_are_kept_while_a_record_is_unreadable() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", CHUNK).await;
        fs.put_all(vec![(namespace::keys::inode(ino).to_vec(), Some(vec![0xff; 9].into()))]);
        let target = TargetId(1);
        put(&fs.stores[&target], ChunkFileId(4242), 0, 1).await;
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        let report = Served::check_with(&fs, None, repair).await;
        assert!(report.findings.iter().any(|finding| finding.kind == Kind::DamagedRecord));
        assert!(report.findings.iter().all(|finding| finding.kind != Kind::StrayChunkFile), "{report:?}");
        assert!(
            report.unjudged.iter().any(|reason| reason.contains("unreadable metadata records")),
            "{:?}",
            report.unjudged
        );
        let mut files = 0;
        for store in fs.stores.values() {
            files += store
                .list()
                .await
                .unwrap()
                .into_iter()
                .filter(|name| *name == ino.first_chunk_file())
                .count();
        }
        assert_eq!(files, 1);
        assert!(fs.stores[&target].list().await.unwrap().contains(&ChunkFileId(4242)));
    });
}

/// It migrates away and back while chunk files are listed; or it is migrating, and may arrive at
/// any time.
#[test]
fn chunk_files_of_migrating_files_are_not_deleted() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", CHUNK).await;
        let (own, home) = (fs.layout(ino).groups[0].0, fs.store_of(&fs.layout(ino), 0).target());
        let away = fs.map.groups.iter().find(|group| group.members.len() == 1 && group.members != [home]);
        let (group, away) = away.map(|group| (group.id.0, group.members[0])).unwrap();
        let name = ino.chunk_file(ChunkSlot(1));
        put(&fs.stores[&away], name, 0, 1).await;
        let there = async || fs.stores[&away].list().await.unwrap().contains(&name);
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        let migrating = namespace::keys::migrating(ino).to_vec();
        fs.put_all(vec![(migrating.clone(), Some(Vec::new().into()))]);
        let report = Served::check_with(&fs, None, repair).await;
        let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!((kinds, report.outcome()), (vec![Kind::StrayChunkFile], CheckOutcome::Damaged));
        assert!(there().await && report.findings[0].remedy.contains("is migrating"), "{report:?}");
        fs.put_all(vec![(migrating, None)]);
        // All locations have been listed once, and suspects are listed again.
        let (lists, seats) = (Cell::new(0), fs.stores.len() + fs.copies.len());
        let comes = || {
            lists.set(lists.get() + 1);
            if lists.get() > seats {
                fs.edit_inode(ino, |inode| {
                    let layout = inode.layout.as_mut().unwrap();
                    layout.slots = vec![0; layout.groups.len()];
                    (layout.groups[0], layout.slots[0]) = (group, 1);
                });
            }
        };
        let report = Served::check_while(&fs, repair, &comes).await;
        assert_eq!(report.findings, [], "{lists:?}");
        assert!(there().await);
        fs.edit_inode(ino, |inode| {
            let layout = inode.layout.as_mut().unwrap();
            (layout.groups[0], layout.slots[0]) = (own, 0);
        });
        let report = Served::check_with(&fs, None, repair).await;
        assert_eq!((report.findings.len(), report.outcome()), (1, CheckOutcome::Repaired));
        assert!(!there().await, "it is elsewhere for good");
    });
}

#[test]
fn equal_copies_are_in_order() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let report = fs.check(false).await;
        assert_eq!((report.outcome(), report.pending), (CheckOutcome::Clean, 0), "{:?}", report.findings);
        assert!(report.unjudged.is_empty());
        assert_eq!(report.chunk_files, 4, "two stripes, two copies of each");
        // The targets themselves have none of it.
        for store in fs.stores.values() {
            assert!(!store.list().await.unwrap().contains(&ino.first_chunk_file()));
        }
    });
}

#[test]
fn copies_that_differ_are_found_with_path_range_and_targets() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        put(copy(&fs, ino, 1), ino.first_chunk_file(), 8192, 0xee).await;
        fs.settle().await;
        let finding = finds_and_repairs_replica(&mut fs, Kind::CopiesDiffer, ino).await;
        assert_eq!((finding.object.as_str(), finding.range), ("/d/f", Some(ByteRange::at(8192, 4096))));
        assert_eq!(finding.target, Some(copy(&fs, ino, 1).target()));
        let [one, two] = [0, 1].map(|which| format!("target {} ", copy(&fs, ino, which).target()));
        assert!(finding.cause.contains(&one) && finding.cause.contains(&two), "{}", finding.cause);
    });
}

#[test]
fn noted_differences_are_left_to_the_restart() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let store = copy(&fs, ino, 1);
        let hold = store.hold_entries();
        put(store, ino.first_chunk_file(), 8192, 0xee).await;
        let report = fs.check(false).await;
        assert_eq!((report.outcome(), report.pending), (CheckOutcome::Clean, 1), "{:?}", report.findings);
        drop(hold);
    });
}

#[test]
fn copies_of_different_lengths_are_found() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        copy(&fs, ino, 0).truncate(ino.first_chunk_file(), 5000).await.unwrap();
        fs.settle().await;
        let finding = finds_and_repairs_replica(&mut fs, Kind::CopiesDiffer, ino).await;
        assert!(finding.cause.contains("5000") && finding.cause.contains("1048576"), "{}", finding.cause);
    });
}

#[test]
fn a_missing_replica_is_reported() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        copy(&fs, ino, 1).delete(ino.first_chunk_file()).await.unwrap();
        fs.settle().await;
        let finding = finds_and_repairs_replica(&mut fs, Kind::MissingChunkFile, ino).await;
        let target = copy(&fs, ino, 1).target();
        assert!(finding.cause.contains(&format!("target {target} ")), "{}", finding.cause);
    });
}

#[test]
fn damage_is_reported_for_its_replica() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let store = copy(&fs, ino, 1);
        let file = OpenOptions::new()
            .write(true)
            .open(Store::chunk_file_path(store.dir(), ino.first_chunk_file()))
            .unwrap();
        file.write_all_at(b"flipped", 8192 + 10).unwrap();
        let target = store.target();
        let finding = finds_and_repairs_replica(&mut fs, Kind::DamagedContent, ino).await;
        assert!(finding.cause.contains(&format!("target {target} ")), "{}", finding.cause);
        assert_eq!(finding.target, Some(target));
        assert!(finding.remedy.contains("another replica"), "{}", finding.remedy);
    });
}

/// Its directory was moved to lost+found, say. Everything else is checked and repaired.
#[test]
fn an_unopenable_replica_is_reported_once_and_the_rest_is_checked() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let (target, lost) = (TargetId(1), GroupId(5));
        fs.reopen_replicas(|stores| {
            std::fs::remove_dir_all(Store::group_dir(stores[&target].dir(), lost)).unwrap();
        })
        .await;
        assert_eq!(fs.copies.len(), 3, "the others are open");
        let other = &fs.copies[&(TargetId(3), GroupId(6))];
        let file = OpenOptions::new()
            .write(true)
            .open(Store::chunk_file_path(other.dir(), ino.first_chunk_file()))
            .unwrap();
        file.write_all_at(b"flipped", 8192).unwrap();
        let is_of_group = |found: &fsck::Finding| found.object == "group 5" && found.target == Some(target);
        for repair in [false, true] {
            let report = fs.check(repair).await;
            let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
            assert_eq!(kinds, [Kind::DamagedContent, Kind::UnknownTarget], "{:?}", report.findings);
            assert_eq!(report.findings[0].repaired, repair, "{:?}", report.findings);
            assert_eq!((report.outcome(), report.chunk_files), (CheckOutcome::Damaged, 3));
            let finding = &report.findings[1];
            assert!(is_of_group(finding) && finding.remedy.contains("lost+found"), "{finding:?}");
            assert!(finding.cause.contains("is missing") && !finding.repaired, "{finding:?}");
        }

        // There is no other replica either: the files are named.
        fs.reopen_replicas(|stores| {
            std::fs::remove_dir_all(Store::group_dir(stores[&TargetId(2)].dir(), lost)).unwrap();
        })
        .await;
        let report = fs.check(false).await;
        let objects: Vec<&str> = report.findings.iter().map(|finding| finding.object.as_str()).collect();
        assert_eq!(objects, ["/d/f", "group 5", "group 5"], "{:?}", report.findings);
        assert!(report.findings.iter().all(|found| found.kind == Kind::UnknownTarget));

        // A replica that needs a resync anyway is no damage.
        let group = fs.map.groups.iter_mut().find(|group| group.id == lost).unwrap();
        group.states = vec![MemberState::NeedsResync, MemberState::NeedsResync];
        let report = fs.check(false).await;
        assert!(!report.findings.iter().any(|found| found.object == "group 5"), "{:?}", report.findings);
        assert_eq!(report.unjudged.len(), 2, "{:?}", report.unjudged);
    });
}

#[test]
fn orphans_of_groups_and_targets_are_distinguished() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        // The target has its own file with the same name as one in its group.
        put(&fs.stores[&copy(&fs, ino, 0).target()], ino.first_chunk_file(), 0, 1).await;
        // The group has an orphaned chunk file.
        put(copy(&fs, ino, 1), ChunkFileId(4242), 0, 1).await;
        fs.settle().await;
        let findings = fs.finds_and_repairs(Kind::StrayChunkFile).await;
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(copy(&fs, ino, 0).stat(ino.first_chunk_file()).await.unwrap().len > 0);
    });
}

#[test]
fn an_out_of_sync_replica_is_reported_and_no_damage() {
    on_a_core(async |mut fs| {
        let ino = mirrored(&mut fs).await;
        let layout = fs.layout(ino);
        copy(&fs, ino, 1).delete(ino.first_chunk_file()).await.unwrap();
        fs.settle().await;
        let group = fs.map.groups.iter_mut().find(|group| group.id == layout.groups[0]).unwrap();
        group.states = vec![MemberState::InSync, MemberState::NeedsResync];
        let report = fs.check(true).await;
        assert_eq!(report.outcome(), CheckOutcome::Clean, "{:?}", report.findings);
        assert_eq!(report.unjudged.len(), 1);
        assert!(report.unjudged[0].contains("needs-resync"), "{:?}", report.unjudged);
    });
}

#[test]
fn a_former_replica_is_orphaned() {
    on_a_core(async |mut fs| {
        let (target, gone) = (TargetId(1), GroupId(77));
        let left = Store::open_group(&fs.stores[&target], gone, IfAbsent::Create).await.unwrap().unwrap().0;
        put(&left, ChunkFileId(4242), 0, 1).await;
        fs.copies.insert((target, gone), left);
        fs.finds_and_repairs(Kind::StrayChunkFile).await;
    });
}

#[test]
fn the_check_waits_for_crash_reconciliation() {
    on_a_core(async |mut fs| {
        mirrored(&mut fs).await;
        let report = Served::check_after(&fs, None, CheckOptions::default(), 5).await;
        assert_eq!((report.outcome(), report.chunk_files), (CheckOutcome::Clean, 4), "{:?}", report.findings);
        let report = Served::check_after(&fs, None, CheckOptions::default(), usize::MAX).await;
        assert_eq!((report.outcome(), report.chunk_files), (CheckOutcome::Damaged, 0));
        assert!(report.findings.iter().all(|finding| finding.kind == Kind::UnknownTarget));
    });
}
