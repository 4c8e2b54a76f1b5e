//! Arbitrary bytes as input of the decoders of access control lists, keys and records: for the fuzz
//! targets and their short form in `tests/`.
//!
//! Each function panics if accepted input changes when it is encoded and decoded again.

use crate::record::{
    self, Entry, Inline, Inode, Layout, Migrating, Orphan, PartitionCounters, Pattern, Time, Writing, Xattr,
};
use crate::{Goal, acl, keys};
use bytes::Bytes;
use prost::Message;
use types::{ByteRange, InodeId, StripePattern};

/// Pieces of a file that are checked.
const PIECES: usize = 4;

/// The value of an attribute `system.posix_acl_access` or `system.posix_acl_default`.
pub fn acl(bytes: &[u8]) {
    let Ok(list) = acl::parse(bytes) else { return };
    assert_eq!(list.to_xattr().len(), bytes.len());
    assert_eq!(acl::parse(&list.to_xattr()).as_ref(), Ok(&list));
    let (mode, inherited) = acl::inherit(&list, 0o640);
    assert_eq!(mode & !0o640, 0);
    let stored = inherited.map(|acl| acl.to_xattr());
    assert!(stored.is_none_or(|stored| acl::parse(&stored).is_ok()));
    let mut changed = list;
    acl::chmod(&mut changed, 0o751);
    assert_eq!(changed.mode_bits(), 0o751);
    changed.grants(1000, 1000, |group| group == 100, 4);
}

/// A key of the store.
pub fn key(bytes: &[u8]) {
    let Some(key) = keys::decode_key(bytes) else { return };
    assert_eq!(keys::decode_key(bytes), Some(key));
    keys::partition_of_key(bytes);
}

/// The value of a key, of any kind.
pub fn record(bytes: &[u8]) {
    if let Some(inode) = same::<Inode>(bytes) {
        inode.attr(InodeId::ROOT);
        inode.kind();
        inode.pattern.iter().for_each(pattern);
        inode.layout.iter().for_each(|stored| layout(stored, inode.size));
        known(inode);
    }
    if let Some(stored) = same::<Layout>(bytes) {
        layout(&stored, u64::MAX);
    }
    if let Some(stored) = same::<Pattern>(bytes) {
        pattern(&stored);
    }
    if let Some(Ok(goal)) = same::<Migrating>(bytes).map(Goal::try_from) {
        assert_eq!(Goal::try_from(Migrating::from(goal)), Ok(goal));
    }
    same::<Entry>(bytes);
    same::<Xattr>(bytes);
    same::<Inline>(bytes);
    same::<Orphan>(bytes);
    same::<Writing>(bytes);
    same::<PartitionCounters>(bytes);
    same::<Time>(bytes);
}

fn same<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let decode = |bytes: &[u8]| record::decode::<M>(b"key", Bytes::copy_from_slice(bytes)).ok();
    let message = decode(bytes)?;
    assert_eq!(decode(&message.encode_to_vec()).as_ref(), Some(&message));
    Some(message)
}

fn pattern(stored: &Pattern) {
    let Ok(pattern) = StripePattern::try_from(stored) else { return };
    assert_eq!(StripePattern::try_from(&Pattern::from(&pattern)), Ok(pattern));
}

fn known(mut inode: Inode) {
    let Some(Ok(layout)) = inode.layout.as_ref().map(types::Layout::try_from) else { return };
    let known = inode.length_bounds(&layout);
    for (stripe, len) in known.iter().enumerate() {
        assert!(*len <= layout::local_len(&layout, stripe, inode.size));
    }
    inode.set_length_bounds(&layout, known.clone());
    assert_eq!(inode.length_bounds(&layout), known);
}

fn layout(stored: &Layout, size: u64) {
    let Ok(known) = types::Layout::try_from(stored) else { return };
    assert_eq!(types::Layout::try_from(&Layout::from(&known)).as_ref(), Ok(&known));
    let end = (0..known.groups.len()).map(|stripe| layout::local_len(&known, stripe, size)).max();
    assert!(end.is_some_and(|end| end <= size));
    for piece in layout::pieces(&known, ByteRange::new(0, size)).take(PIECES) {
        let stripe = known.stripe_of_slot(piece.group, known.slot(piece.stripe));
        assert!(stripe.is_some_and(|stripe| stripe <= piece.stripe));
        known.chunk_file(InodeId::ROOT, piece.stripe);
    }
}
