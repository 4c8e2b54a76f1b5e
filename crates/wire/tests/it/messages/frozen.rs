//! Golden tests of the encoding in version 1. Versions of weft interoperate as long as these bytes
//! stay the same: a failure here is a change of the format, never a file to be replaced. A run with
//! `WEFT_NEW_GOLDEN=1` writes the file of a new kind of message.

use super::samples::samples;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

#[test]
fn messages_match_their_golden_bytes() {
    let may_add = std::env::var_os("WEFT_NEW_GOLDEN").is_some();
    let mut names = BTreeSet::new();
    for sample in samples() {
        let file = format!("{}.bin", sample.name);
        let path = folder().join(&file);
        if may_add && !path.exists() {
            fs::write(&path, &sample.bytes).expect("the folder is there");
        }
        let frozen = fs::read(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(sample.bytes, frozen, "{file}: the message is written differently now");
        assert!((sample.is)(&frozen), "{file}: the bytes mean something else now");
        assert!(names.insert(file), "{} is there twice", sample.name);
    }
    let files = fs::read_dir(folder()).expect("the folder is there");
    let files = files.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    assert_eq!(files.collect::<BTreeSet<_>>(), names);
}

/// A few messages, written out from the format's definition.
#[test]
fn messages_are_the_protobuf_that_they_are_meant_to_be() {
    let sample =
        |name: &str| samples().into_iter().find(|sample| sample.name == name).expect("a sample").bytes;
    assert_eq!(sample("error-plain"), [0x08, 2]);
    assert_eq!(sample("storage_reply-unit"), [0x52, 0]);
    let read = [
        0x08, 7, // session
        0x10, 12, // target
        0x18, 0xcd, 0x80, 0x80, 0x80, 0x80, 0x60, // inode
        0x52, 9, // read
        0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, // offset
        0x10, 2, // through the cache
    ];
    assert_eq!(sample("storage_request-read"), read);
    let lookup = [
        0x08, 7, // session
        0x10, 0xac, 2, // slot and sequence
        0x1a, 8, 0x08, 0xe8, 7, 0x10, 100, 0x18, 0xe7, 0x24, // credentials
        0x52, 8, 0x08, 1, 0x12, 4, b'n', b'a', b'm', b'e', // lookup of a name in the root
    ];
    assert_eq!(sample("meta_request-lookup"), lookup);
}
