//! What decoders ignore and what they refuse.

use super::samples::samples;
use super::walk::{delimited, fields, number};
use std::fmt::Debug;
use types::Error;
use wire::{
    KvReply, KvRequest, MAX_KV_BATCHES, Malformed, Message, MetaReply, MetaRequest, MetaResponse,
    StorageReply, StorageRequest,
};
use wire::{MAX_ENTRIES, MAX_LIST_ITEMS, MAX_NAME_BYTES};

/// Undefined fields of every wire type.
fn unknown_fields() -> Vec<u8> {
    let mut unknown = number(1000, u64::MAX);
    unknown.extend(delimited(1001, b"a later version's"));
    unknown.extend([0xd5, 0x3e, 1, 2, 3, 4]); // 1002, four bytes
    unknown.extend([0xd9, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8]); // 1003, eight bytes
    unknown
}

#[test]
fn unknown_fields_are_passed_over() {
    let unknown = unknown_fields();
    for sample in samples().into_iter().filter(|sample| sample.name != "header") {
        let name = &sample.name;
        assert!((sample.is)(&[&unknown[..], &sample.bytes[..]].concat()), "{name}: in front");
        assert!((sample.is)(&[&sample.bytes[..], &unknown[..]].concat()), "{name}: behind");
    }
}

#[test]
fn unknown_fields_of_a_kind_are_passed_over() {
    // A plain answer's bytes decode to no message.
    let with_kinds = |name: &str| {
        ["meta_", "storage_", "kv_"].iter().any(|service| name.starts_with(service))
            && !name.ends_with("-bytes")
    };
    for sample in samples().into_iter().filter(|sample| with_kinds(&sample.name)) {
        let mut changed = Vec::new();
        for field in fields(&sample.bytes) {
            match field.content {
                Some(content) => {
                    changed.extend(delimited(field.number, &[content, &unknown_fields()].concat()))
                }
                None => changed.extend_from_slice(field.bytes),
            }
        }
        assert!(changed.len() > sample.bytes.len());
        assert!((sample.is)(&changed), "{}", sample.name);
    }
}

fn cause<M: Message + Debug>(bytes: &[u8]) -> String {
    let Malformed { cause } = M::decode(bytes).expect_err("must be refused");
    cause
}

/// The error of a metadata request of this kind.
fn meta_op(kind: u32, content: &[u8]) -> String {
    cause::<MetaRequest>(&[delimited(3, &[]), delimited(kind, content)].concat())
}

/// The error of a metadata answer of this kind.
fn meta_reply(kind: u32, content: &[u8]) -> String {
    cause::<MetaResponse>(&delimited(kind, content))
}

fn storage_op(kind: u32, content: &[u8]) -> String {
    cause::<StorageRequest>(&delimited(kind, content))
}

/// Attributes of a regular file.
fn attr() -> Vec<u8> {
    number(2, 0o100644)
}

#[test]
fn missing_parts_are_refused() {
    assert_eq!(cause::<MetaRequest>(&delimited(11, &[])), "no credentials");
    assert_eq!(cause::<MetaRequest>(&delimited(3, &[])), "no known metadata operation");
    assert_eq!(cause::<MetaRequest>(&[]), "no credentials");
    assert_eq!(cause::<MetaResponse>(&[]), "no known metadata answer");
    assert_eq!(cause::<StorageRequest>(&[]), "no known storage operation");
    assert_eq!(cause::<StorageReply>(&[]), "no known storage answer");
    assert_eq!(meta_op(12, &number(1, 1)), "no attributes to set");
    assert_eq!(meta_op(12, &delimited(2, &delimited(4, &[]))), "no known time to set");
    assert_eq!(meta_op(20, &[]), "no name to rename");
    assert_eq!(meta_op(20, &delimited(1, &[])), "no name to rename to");
    assert_eq!(meta_op(30, &number(2, 9)), "no mtime");
    assert_eq!(meta_op(35, &[number(2, 1), number(5, 1)].concat()), "no range of a lock");
    assert_eq!(meta_op(43, &[]), "no change");
    assert_eq!(meta_reply(12, &[]), "no attributes");
    assert_eq!(meta_reply(14, &[]), "no attributes of the renamed inode");
    assert_eq!(meta_reply(18, &[]), "no attributes");
    assert_eq!(storage_op(13, &number(2, 1)), "no range to allocate");
    assert_eq!(cause::<StorageReply>(&delimited(11, &[])), "no mtime");
}

#[test]
fn unknown_kinds_and_values_are_refused() {
    assert_eq!(meta_op(999, &[]), "no known metadata operation");
    assert_eq!(meta_op(27, &number(2, 4)), "unknown mode of a lease 4");
    assert_eq!(meta_op(20, &[delimited(1, &[]), delimited(2, &[])].concat()), "unknown mode of renaming 0");
    assert_eq!(meta_op(24, &number(4, 4)), "unknown mode of setting an attribute 4");
    assert_eq!(meta_op(35, &number(2, 3)), "unknown family of locks 3");
    assert_eq!(meta_op(37, &number(3, 3)), "unknown kind of lock 3");
    assert_eq!(meta_op(43, &delimited(2, &number(5, 4))), "unknown chooser 4");
    assert_eq!(storage_op(10, &[]), "unknown data path 0");
    assert_eq!(storage_op(11, &number(2, 3)), "unknown data path 3");
    assert_eq!(storage_op(18, &number(2, 3)), "unknown kind of seek 3");
    let grant = delimited(1, &delimited(1, &number(1, 5)));
    assert_eq!(cause::<MetaResponse>(&[grant, delimited(10, &[])].concat()), "unknown mode of a lease 0");
}

#[test]
fn impossible_values_are_refused() {
    assert_eq!(meta_reply(11, &number(2, 0o644)), "attributes of unknown file type 644");
    // A second of 1,000,000,000 nanoseconds.
    let late = [0x15, 0x00, 0xca, 0x9a, 0x3b];
    assert_eq!(meta_op(30, &delimited(3, &late)), "a time with 1000000000 nanoseconds in a second");
    for nanos in [9, 11, 13, 15] {
        let late = [&[nanos << 3 | 5][..], &late[1..]].concat();
        let attr = [attr(), late].concat();
        assert_eq!(meta_reply(11, &attr), "a time with 1000000000 nanoseconds in a second");
    }
    let inverted = [number(1, 2), number(2, 1)].concat();
    assert_eq!(storage_op(13, &delimited(1, &inverted)), "the range 2..1 is inverted");
    let unlock = [number(2, 1), delimited(4, &inverted)].concat();
    assert_eq!(meta_op(36, &unlock), "the range 2..=1 is inverted");
    let file = |layout: Vec<u8>| meta_reply(18, &delimited(2, &layout));
    assert_eq!(file(number(1, 65536)), "a layout without groups");
    assert_eq!(file([number(1, 0), number(4, 1)].concat()), "a chunk size of 0 bytes");
    assert_eq!(file([number(1, 65537), number(4, 1)].concat()), "a chunk size of 65537 bytes");
    let pool = [number(1, 65536), number(2, 65536), number(3, 1), number(4, 1)].concat();
    assert_eq!(file(pool), "impossible pool 65536");
    let stripes = delimited(2, &[number(2, 1), number(3, 65536)].concat());
    let description = [delimited(1, &attr()), stripes].concat();
    assert_eq!(meta_reply(21, &description), "a pattern of 0 stripes");
    assert_eq!(cause::<Error>(&[]), "an error with the number 0");
    assert_eq!(cause::<Error>(&number(1, 4096)), "an error with the number 4096");
}

#[test]
fn lists_and_names_are_bounded() {
    let list = |count: usize| delimited(1, &[]).repeat(count);
    let names = MetaResponse::decode(&delimited(16, &list(MAX_LIST_ITEMS))).expect("as many as are allowed");
    assert!(matches!(names.reply, MetaReply::Names(names) if names.len() == MAX_LIST_ITEMS));
    assert_eq!(meta_reply(16, &list(MAX_LIST_ITEMS + 2)), "a list of 65538 items, at most 65536 are allowed");
    let listing = delimited(1, &list(MAX_ENTRIES + 1));
    assert_eq!(meta_reply(17, &listing), "a list of 16385 items, at most 16384 are allowed");
    assert_eq!(meta_op(39, &list(MAX_LIST_ITEMS + 1)), "a list of 65537 items, at most 65536 are allowed");
    let inodes = delimited(1, &vec![1; MAX_LIST_ITEMS + 1]);
    assert_eq!(meta_op(40, &inodes), "65537 inodes, at most 65536 are allowed");
    let name = delimited(2, &vec![b'x'; MAX_NAME_BYTES + 1]);
    assert_eq!(meta_op(10, &name), "a name of 4097 bytes, at most 4096 are allowed");
}

#[test]
fn batch_counts_are_bounded_and_match_guards_and_writes() {
    let apply = |parts: &[Vec<u8>]| cause::<KvRequest>(&delimited(12, &parts.concat()));
    let batch = delimited(1, &[number(1, 1), number(2, 1)].concat());
    let item = delimited(1, &delimited(1, b"key"));
    let (batches, guards, writes) = (delimited(3, &batch), delimited(4, &item), delimited(5, &item));
    let message = delimited(12, &[batches.clone(), guards.clone(), writes.clone()].concat());
    assert!(
        matches!(KvRequest::decode(&message), Ok(KvRequest::Apply { batches, .. }) if batches.len() == 1)
    );
    let uneven = "batches whose numbers of guards or writes don't add up";
    assert_eq!(apply(&[guards.clone(), writes.clone()]), uneven);
    assert_eq!(apply(&[batches.clone(), guards.clone()]), uneven);
    assert_eq!(apply(&[batches, guards, delimited(5, &item.repeat(2))]), uneven);
    // Their sum overflows.
    let huge = delimited(1, &number(2, u64::from(u32::MAX))).repeat(3);
    assert_eq!(apply(&[delimited(3, &huge), writes]), uneven);
    let many = delimited(3, &delimited(1, &[]).repeat(MAX_KV_BATCHES + 1));
    assert_eq!(apply(&[many]), "a list of 1025 items, at most 1024 are allowed");
    assert_eq!(cause::<KvRequest>(&[]), "no known request to the store");
    assert_eq!(cause::<KvReply>(&[]), "no known answer of the store");
    assert_eq!(cause::<KvReply>(&delimited(11, &delimited(1, &item))), "no value of a pair");
    assert_eq!(cause::<KvReply>(&delimited(12, &number(1, 4))), "unknown outcome of a batch 4");
}

#[test]
fn lengths_beyond_the_message_claim_no_memory() {
    // Length prefixes of four gigabytes for a name, a list and a string.
    let claim = [0xff, 0xff, 0xff, 0xff, 0x0f];
    for start in [&[0x0a][..], &[0x12], &[0x52], &[0x7a], &[0x82, 1, 0x80, 2, 0x0a]] {
        wire::fuzzing::messages(&[start, &claim].concat());
        assert!(StorageRequest::decode(&[start, &claim].concat()).is_err());
        assert!(MetaResponse::decode(&[start, &claim].concat()).is_err());
        assert!(Error::decode(&[start, &claim].concat()).is_err());
    }
}

#[test]
fn an_errno_that_is_none_becomes_an_input_output_error() {
    let mut out = Vec::new();
    Error::from(types::Errno::Number(-5)).encode(&mut out);
    assert_eq!(Error::decode(&out), Ok(Error::from(types::Errno::EIO)));
}
