//! Faults of metadata.

use super::support::{Fs, HASH_KEY, PARTITIONS, on_a_core};
use fsck::{CheckOptions, CheckOutcome, Kind};
use namespace::keys;
use namespace::record::{Entry, Inline, Orphan, PartitionCounters, Xattr};
use types::{InodeId, PartitionId, mode};
use wire::MetaOp;

/// Creates a tree with every kind of entry: `/d`, `/d/sub`, `/d/f`, `/f`, `/link` (to `/f`).
fn tree(fs: &Fs) -> (InodeId, InodeId) {
    let dir = fs.mkdir(InodeId::ROOT, "d");
    fs.mkdir(dir, "sub");
    fs.create(dir, "f");
    let file = fs.create(InodeId::ROOT, "f");
    fs.run(MetaOp::Link { ino: file, parent: InodeId::ROOT, name: "link".into() });
    fs.run(MetaOp::WriteInline {
        ino: file,
        offset: 0,
        data: "content".into(),
        kill_suid_sgid: false,
        at_end: false,
    });
    (dir, file)
}

#[test]
fn a_sound_file_system_is_clean() {
    on_a_core(async |fs| {
        assert_eq!(fs.check(false).await.outcome(), CheckOutcome::Clean);
        let (dir, file) = tree(&fs);
        fs.chunked(dir, "big", 300_000).await;
        let report = fs.check(true).await;
        assert_eq!(report.outcome(), CheckOutcome::Clean, "{:?}", report.findings);
        assert_eq!((report.files, report.directories, report.pending), (3, 3, 0));
        assert_eq!(report.bytes, 300_000);
        // State that a restart reconciles is no damage.
        fs.run(MetaOp::Unlink { parent: InodeId::ROOT, name: "f".into(), ino: None });
        fs.run(MetaOp::Unlink { parent: InodeId::ROOT, name: "link".into(), ino: None });
        fs.run(MetaOp::BeginWrite { ino: file });
        let report = fs.check(true).await;
        assert_eq!((report.outcome(), report.pending), (CheckOutcome::Clean, 2));
    });
}

#[test]
fn a_damaged_record_is_removed_with_dependent_records() {
    on_a_core(async |fs| {
        let (_, file) = tree(&fs);
        fs.put_all(vec![(keys::inode(file).to_vec(), Some(vec![0xff; 9].into()))]);
        let findings = fs.finds_and_repairs(Kind::DamagedRecord).await;
        assert!(
            findings.iter().any(|finding| finding.kind == Kind::DanglingName && finding.object == "/link")
        );
    });
}

#[test]
fn records_in_partitions_without_inodes_are_found() {
    on_a_core(async |fs| {
        for partition in [PartitionId(9), keys::GLOBAL] {
            let key = keys::inode(InodeId((partition.0 as u64) << 40 | 5));
            fs.put(&key, &fs.inode(InodeId::ROOT));
            let findings = fs.finds_and_repairs(Kind::DamagedRecord).await;
            assert_eq!(findings.len(), 1);
        }
        fs.put_all(vec![(b"\xff\xffmap".to_vec(), Some(b"management's".to_vec().into()))]);
        assert_eq!(fs.check(true).await.outcome(), CheckOutcome::Clean);
    });
}

#[test]
fn a_dangling_name_is_removed() {
    on_a_core(async |fs| {
        let (dir, _) = tree(&fs);
        fs.put(&fs.entry_key(dir, "ghost"), &Entry::new(InodeId(999), mode::S_IFREG));
        let findings = fs.finds_and_repairs(Kind::DanglingName).await;
        assert_eq!((findings.len(), findings[0].object.as_str()), (1, "/d/ghost"));
    });
}

#[test]
fn a_misfiled_name_is_stored_where_it_belongs() {
    on_a_core(async |fs| {
        let (_, file) = tree(&fs);
        fs.delete(&fs.entry_key(InodeId::ROOT, "f"));
        fs.put(&keys::entry(InodeId::ROOT, 77, b"f"), &Entry::new(file, mode::S_IFREG));
        fs.finds_and_repairs(Kind::MisfiledName).await;
        fs.put(&fs.entry_key(InodeId::ROOT, "f"), &Entry::new(file, mode::S_IFLNK));
        fs.finds_and_repairs(Kind::MisfiledName).await;
        let found = fs.run(MetaOp::Lookup { parent: InodeId::ROOT, name: "f".into() });
        assert!(matches!(found, wire::MetaReply::Entry(attr) if attr.ino == file && attr.nlink == 2));
    });
}

#[test]
fn link_counts_are_set_to_the_number_of_names() {
    on_a_core(async |fs| {
        let (dir, file) = tree(&fs);
        fs.edit_inode(file, |inode| inode.nlink = 5);
        fs.edit_inode(dir, |inode| inode.nlink = 2);
        assert_eq!(fs.finds_and_repairs(Kind::LinkCount).await.len(), 2);
        assert_eq!((fs.inode(file).nlink, fs.inode(dir).nlink), (2, 3));
    });
}

#[test]
fn unreachable_inodes_are_named_in_lost_and_found() {
    on_a_core(async |fs| {
        let (dir, file) = tree(&fs);
        for name in ["f", "link", "d"] {
            fs.delete(&fs.entry_key(InodeId::ROOT, name));
        }
        fs.edit_inode(InodeId::ROOT, |root| root.nlink = 2);
        fs.finds_and_repairs(Kind::Unreachable).await;
        let lost = fs.run(MetaOp::Lookup { parent: InodeId::ROOT, name: "lost+found".into() });
        let wire::MetaReply::Entry(lost) = lost else { panic!("{lost:?}") };
        for ino in [dir, file] {
            let name = ino.0.to_string().into();
            let found = fs.run(MetaOp::Lookup { parent: lost.ino, name });
            assert!(matches!(found, wire::MetaReply::Entry(attr) if attr.ino == ino));
        }
    });
}

#[test]
fn a_directory_gets_its_parent_back() {
    on_a_core(async |fs| {
        let (dir, _) = tree(&fs);
        fs.edit_inode(dir, |inode| inode.parent = 12345);
        fs.finds_and_repairs(Kind::Parent).await;
        assert_eq!(fs.inode(dir).parent_id(), InodeId::ROOT);
    });
}

#[test]
fn a_directory_with_two_names_is_not_repaired() {
    on_a_core(async |fs| {
        let (dir, _) = tree(&fs);
        fs.put(&fs.entry_key(InodeId::ROOT, "again"), &Entry::new(dir, mode::S_IFDIR));
        fs.edit_inode(InodeId::ROOT, |root| root.nlink += 1);
        fs.finds_and_leaves(Kind::Parent).await;
    });
}

#[test]
fn stray_and_contradictory_records_are_removed() {
    on_a_core(async |fs| {
        let (dir, file) = tree(&fs);
        let nobody = InodeId(998);
        fs.put(&keys::xattr(nobody, b"user.a"), &Xattr { value: Some("v".into()) });
        fs.put(&keys::inline(nobody), &Inline { content: "lost".into() });
        fs.put(&keys::inline(dir), &Inline { content: "of a directory".into() });
        fs.put(&keys::orphan(nobody), &Orphan { session: Some(1) });
        fs.put(&keys::orphan(file), &Orphan { session: Some(1) });
        let big = fs.chunked(dir, "big", 100_000).await;
        fs.put(&keys::doomed(big.first_chunk_file()), &fs.inode(big).layout.unwrap());
        let findings = fs.finds_and_repairs(Kind::StrayRecord).await;
        assert_eq!(findings.len(), 6, "{findings:?}");
        assert!(fs.engine_has(&keys::inode(big)));
    });
}

#[test]
fn a_number_that_is_in_use_is_not_given_out_again() {
    on_a_core(async |fs| {
        let (_, file) = tree(&fs);
        let key = keys::partition_counters(file.partition());
        fs.put(&key, &PartitionCounters { sequence: 2, inodes: Some(0) });
        assert_eq!(fs.finds_and_repairs(Kind::NextNumber).await.len(), 1);
        // A partition without the record starts at 2.
        fs.delete(&key);
        assert_eq!(fs.finds_and_repairs(Kind::NextNumber).await.len(), 1);
    });
}

#[test]
fn inodes_that_are_counted_wrongly_are_counted() {
    on_a_core(async |fs| {
        let (_, file) = tree(&fs);
        let key = keys::partition_counters(file.partition());
        let next: PartitionCounters = fs.get(&key);
        let counted = next.inodes.filter(|inodes| *inodes > 0).expect("they are counted");
        fs.put(&key, &PartitionCounters { inodes: Some(counted + 1), ..next });
        let findings = fs.finds_and_repairs(Kind::InodeCount).await;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(fs.get::<PartitionCounters>(&key), next);
        // A record of an earlier version.
        fs.put(&key, &PartitionCounters { inodes: None, ..next });
        assert_eq!(fs.check(false).await.outcome(), CheckOutcome::Clean);
    });
}

/// The count is wrong, and there is another fault that only an administrator can decide.
#[test]
fn a_finding_that_repair_leaves_does_not_count_as_repaired_with_the_inodes() {
    on_a_core(async |fs| {
        let (dir, file) = tree(&fs);
        fs.put(&fs.entry_key(InodeId::ROOT, "again"), &Entry::new(dir, mode::S_IFDIR));
        fs.edit_inode(InodeId::ROOT, |inode| inode.nlink += 1);
        let key = keys::partition_counters(file.partition());
        let next: PartitionCounters = fs.get(&key);
        let counted = next.inodes.expect("they are counted");
        fs.put(&key, &PartitionCounters { inodes: Some(counted + 1), ..next });
        let report = fs.check(true).await;
        let found: Vec<_> = report.findings.iter().map(|found| (found.kind, found.repaired)).collect();
        assert_eq!(found, [(Kind::Parent, false), (Kind::InodeCount, true)]);
        assert_eq!(fs.get::<PartitionCounters>(&key), next);
    });
}

#[test]
fn names_are_repaired_without_chunk_files() {
    on_a_core(async |fs| {
        let (dir, file) = tree(&fs);
        let big = fs.chunked(dir, "big", 300_000).await;
        std::fs::remove_file(fs.chunk_file(big, 0)).unwrap();
        fs.edit_inode(file, |inode| inode.nlink = 5);
        let check = async |repair| {
            let orders = CheckOptions { repair, ..CheckOptions::default() };
            let of_store = (PARTITIONS, HASH_KEY);
            fsck::check_names(&*fs.metadata, of_store, &orders, &|_, _, _| ()).await.unwrap()
        };
        for (repair, verdict) in [(false, CheckOutcome::Damaged), (true, CheckOutcome::Repaired)] {
            let report = check(repair).await;
            let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
            assert_eq!((report.outcome(), kinds), (verdict, vec![Kind::LinkCount]));
            assert_eq!((report.files, report.directories, report.chunk_files), (3, 3, 0));
        }
        assert_eq!(check(false).await.outcome(), CheckOutcome::Clean);
        assert_eq!(fs.check(false).await.findings[0].kind, Kind::MissingChunkFile);
    });
}
