use crate::support::{PartitionLocking, World};
use namespace::{children, keys};
use std::collections::BTreeSet;
use types::{Errno, InodeId};

const ROOT: InodeId = InodeId::ROOT;

fn names(entries: &[wire::DirEntry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect()
}

#[test]
fn pages_of_any_length_show_every_entry_once() {
    let mut world = World::new(PartitionLocking::All);
    let expected: BTreeSet<String> = (0..50).map(|number| format!("file{number}")).collect();
    for name in &expected {
        world.create(ROOT, name);
    }
    for limit in [1, 2, 7, 49, 50, 51, 1000] {
        let listed = names(&world.list(ROOT, limit).unwrap());
        assert_eq!(listed.len(), 50, "pages of {limit}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected, "pages of {limit}");
    }
}

#[test]
fn a_page_never_parts_equal_hashes() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let dir = world.mkdir(ROOT, "dir");
    // In order of hash: one, three that collide, one, two that collide.
    let planted = [(20, "a"), (30, "b"), (30, "c"), (30, "d"), (40, "e"), (50, "f"), (50, "g")];
    planted.iter().for_each(|(hash, name)| world.plant_entry(dir, *hash, name, file));
    for limit in 1..=8 {
        assert_eq!(names(&world.list(dir, limit).unwrap()), ["a", "b", "c", "d", "e", "f", "g"], "{limit}");
    }
    let (entries, end, _) = world.page(dir, 0, 2).unwrap();
    assert_eq!((names(&entries), end), (["a", "b", "c", "d"].map(String::from).to_vec(), false));
    let (entries, end, _) = world.page(dir, 40, 1).unwrap();
    assert_eq!(names(&entries), ["f", "g"]);
    // These are the last entries, but only the next page shows that.
    assert!(!end);
    assert!(world.page(dir, 50, 1).unwrap().1);
    assert_eq!(names(&children(&world.state, dir, 20, 1).unwrap()), ["b", "c", "d"]);
}

#[test]
fn a_listing_goes_on_after_its_last_entry_is_removed() {
    let mut world = World::new(PartitionLocking::All);
    for number in 0..20 {
        world.create(ROOT, &format!("file{number}"));
    }
    let all = names(&world.list(ROOT, 100).unwrap());
    let (first, _, _) = world.page(ROOT, 0, 10).unwrap();
    for name in &all[5..12] {
        world.unlink(ROOT, name).unwrap();
    }
    let (rest, end, _) = world.page(ROOT, first[9].cookie, 100).unwrap();
    assert_eq!((names(&rest), end), (all[12..].to_vec(), true));
}

#[test]
fn cookies_leave_room_for_dots_and_fit_a_signed_offset() {
    let mut world = World::new(PartitionLocking::All);
    for number in 0..100 {
        world.create(ROOT, &format!("file{number}"));
    }
    for entry in world.list(ROOT, 100).unwrap() {
        assert!((keys::FIRST_COOKIE..=keys::LAST_COOKIE).contains(&entry.cookie));
    }
    let (entries, end, _) = world.page(ROOT, u64::MAX, 10).unwrap();
    assert!(entries.is_empty() && end);
}

#[test]
fn attributes_come_with_entries_of_the_same_partition() {
    let mut world = World::new(PartitionLocking::OnDemand);
    world.create(ROOT, "file");
    for number in 0..8 {
        world.mkdir(ROOT, &format!("dir{number}"));
    }
    for entry in world.list(ROOT, 100).unwrap() {
        assert_eq!(entry.attr.is_some(), entry.ino.partition() == ROOT.partition());
    }
}

#[test]
fn only_directories_are_listed() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(world.page(file, 0, 1).unwrap_err(), Errno::ENOTDIR);
    let dir = world.mkdir(ROOT, "dir");
    let (entries, end, parent) = world.page(dir, 0, 1).unwrap();
    assert_eq!((entries.len(), end, parent), (0, true, ROOT));
}
