use crate::support::{PartitionLocking, World};
use namespace::{inodes, orphans, unrecovered_files};
use types::{InodeId, PartitionId, SessionId};
use wire::MetaOp;

const ROOT: InodeId = InodeId::ROOT;

#[test]
fn pages_of_notes_hold_whole_inodes() {
    let mut world = World::new(PartitionLocking::All);
    let files: Vec<InodeId> = (0..3).map(|number| world.create(ROOT, &format!("file{number}"))).collect();
    for session in 1..=4 {
        world.session = SessionId(session);
        for &ino in &files {
            world.run(MetaOp::BeginWrite { ino }).unwrap();
        }
    }
    for limit in 1..=13 {
        let mut seen = Vec::new();
        let mut after = InodeId(0);
        loop {
            let page = unrecovered_files(&world.state, PartitionId(0), after, limit).unwrap();
            let Some(last) = page.last() else { break };
            after = last.record.ino;
            seen.extend(page.iter().map(|found| (found.record.ino, found.record.session.0)));
        }
        let expected: Vec<_> = files.iter().flat_map(|&ino| (1..=4).map(move |s| (ino, s))).collect();
        assert_eq!(seen, expected, "pages of {limit}");
    }
    let page = unrecovered_files(&world.state, PartitionId(0), InodeId(0), 1).unwrap();
    assert!(page.iter().all(|found| found.inline && found.layout.is_some()));
}

#[test]
fn orphans_and_inodes_come_in_pages() {
    let mut world = World::new(PartitionLocking::All);
    let mut expected = Vec::new();
    for number in 0..5 {
        let name = format!("file{number}");
        expected.push(world.create(ROOT, &name));
        world.unlink(ROOT, &name).unwrap();
    }
    let mut seen = Vec::new();
    while let Some(orphan) =
        orphans(&world.state, PartitionId(0), seen.last().copied().unwrap_or(InodeId(0)), 1).unwrap().first()
    {
        seen.push(orphan.ino);
    }
    assert_eq!(seen, expected);
    let all = inodes(&world.state, PartitionId(0), InodeId(0), 100).unwrap();
    assert_eq!(all.len(), 6);
    assert_eq!(inodes(&world.state, PartitionId(1), InodeId(0), 100), Ok(vec![]));
}
