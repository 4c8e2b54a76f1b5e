//! The invariants of every state that the crate's documentation lists.

use super::{HASH_KEY, PARTITIONS, State};
use namespace::record::{Entry, Inline, Inode, PartitionCounters, Xattr, decode};
use namespace::{Key, decode_key, inodes, keys};
use std::collections::BTreeMap;
use types::{InodeId, PartitionId};

/// Panics with the violation.
pub fn check(state: &State) {
    let inodes = all_inodes(state);
    let mut names: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
    let mut attributes: BTreeMap<InodeId, (u32, u32)> = BTreeMap::new();
    for (raw, value) in &state.0 {
        let key = decode_key(raw).unwrap_or_else(|| panic!("{raw:?} is no key"));
        match key {
            Key::Entry { dir, hash, name } => {
                let entry: Entry = decode(raw, value.clone()).unwrap();
                assert_eq!(hash, keys::name_hash(HASH_KEY, &name));
                let inode = inodes.get(&entry.id()).unwrap_or_else(|| panic!("{name:?} dangles"));
                assert_eq!(entry.kind, inode.mode & types::mode::S_IFMT, "type of {name:?}");
                names.entry(entry.id()).or_default().push(dir);
            }
            Key::Xattr { ino, name } => {
                let xattr: Xattr = decode(raw, value.clone()).unwrap();
                let (names, values) = attributes.entry(ino).or_default();
                *names += name.len() as u32 + 1;
                *values += xattr.value.unwrap_or_default().len() as u32;
            }
            Key::Inline(ino) => {
                let inline: Inline = decode(raw, value.clone()).unwrap();
                let inode = &inodes[&ino];
                assert!(inode.inline && inline.content.len() as u64 <= inode.size, "inline content of {ino}");
            }
            Key::Orphan(ino) => assert_eq!(inodes[&ino].nlink, 0, "{ino} is no orphan"),
            Key::Writing { ino, .. } => assert!(inodes[&ino].layout.is_some(), "{ino} has no chunks"),
            Key::Doomed(name) => {
                assert!(!inodes.contains_key(&InodeId(name.0)), "{name} is doomed and alive");
            }
            Key::Migrating(_) => panic!("{key:?} is written by who moves files"),
            Key::Inode(_) | Key::PartitionCounters(_) => {}
            Key::Owner(_) | Key::Operation { .. } | Key::Session(_) => {
                panic!("{key:?} is not for this crate to write")
            }
        }
    }
    check_counts(state, &inodes);
    for (&ino, inode) in &inodes {
        let named_by = names.remove(&ino).unwrap_or_default();
        check_links(state, &inodes, ino, inode, &named_by);
        let account = attributes.remove(&ino).unwrap_or_default();
        assert_eq!(account, (inode.xattr_names, inode.xattr_values), "attributes of {ino}");
        check_acl(state, ino, inode.access_acl, "system.posix_acl_access");
        check_acl(state, ino, inode.default_acl, "system.posix_acl_default");
    }
    assert!(attributes.is_empty(), "attributes without inodes: {attributes:?}");
}

fn check_counts(state: &State, inodes: &BTreeMap<InodeId, Inode>) {
    for partition in (0..PARTITIONS).map(PartitionId) {
        let key = keys::partition_counters(partition);
        let next =
            state.0.get(&key[..]).map(|value| decode::<PartitionCounters>(&key, value.clone()).unwrap());
        let is_counted = |ino: &&InodeId| ino.partition() == partition && **ino != InodeId::ROOT;
        let there = inodes.keys().filter(is_counted).count() as u64;
        assert_eq!(next.map_or(Some(0), |next| next.inodes), Some(there), "inodes of partition {partition}");
    }
}

fn check_links(
    state: &State,
    inodes: &BTreeMap<InodeId, Inode>,
    ino: InodeId,
    inode: &Inode,
    named_by: &[InodeId],
) {
    let is_orphan = state.0.contains_key(keys::orphan(ino).as_slice());
    assert_eq!(is_orphan, inode.nlink == 0, "orphan record of {ino}");
    if !inode.is_directory() {
        assert_eq!(inode.nlink as usize, named_by.len(), "links of {ino}");
        return;
    }
    let subdirectories =
        inodes.values().filter(|child| child.is_directory() && child.nlink > 0 && child.parent_id() == ino);
    // The root is its own parent without being its own subdirectory.
    let expected = subdirectories.count() as u32 + 2 - (ino == InodeId::ROOT) as u32;
    match inode.nlink {
        0 => {
            assert!(named_by.is_empty(), "removed directory {ino} has a name");
            assert_eq!(expected, 2, "removed directory {ino} has subdirectories");
        }
        nlink => assert_eq!(nlink, expected, "links of directory {ino}"),
    }
    if inode.nlink > 0 && ino != InodeId::ROOT {
        assert_eq!(named_by, [inode.parent_id()], "parent of directory {ino}");
        check_reaches_root(inodes, ino);
    }
}

fn check_reaches_root(inodes: &BTreeMap<InodeId, Inode>, ino: InodeId) {
    let mut above = ino;
    for _ in 0..=inodes.len() {
        if above == InodeId::ROOT {
            return;
        }
        above = inodes[&above].parent_id();
    }
    panic!("directory {ino} is in a loop");
}

fn check_acl(state: &State, ino: InodeId, flag: bool, name: &str) {
    assert_eq!(flag, state.0.contains_key(&keys::xattr(ino, name.as_bytes())), "{name} of {ino}");
}

fn all_inodes(state: &State) -> BTreeMap<InodeId, Inode> {
    let mut all = BTreeMap::new();
    for partition in (0..PARTITIONS).map(PartitionId) {
        let mut after = InodeId(0);
        loop {
            let page = inodes(state, partition, after, 3).unwrap();
            let Some(&(last, _)) = page.last() else { break };
            after = last;
            all.extend(page);
        }
    }
    all
}
