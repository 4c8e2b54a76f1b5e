//! A store opens only the expected directory, and a refusal changes nothing.

use crate::common::{identity, open, run, with_target};
use chunkstore::{Identity, Kind, Options, Store};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use types::TargetId;

fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(content(&path));
            all.insert(path, Vec::new());
        } else {
            all.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    all
}

/// Opens as `expected` after `spoil`, and expects a refusal that contains all of `words`.
fn refused(
    expected: Identity,
    kind: Kind,
    words: &'static [&'static str],
    spoil: impl FnOnce(&Path) + 'static,
) {
    with_target(move |dir| async move {
        spoil(&dir);
        let before = content(&dir);
        let error = Store::open(&dir, &expected, Options::default()).await.err().expect("it must not open");
        assert_eq!(error.kind(), kind, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{word:?} is missing in: {error}");
        }
        assert!(!error.hint().is_empty());
        assert!(content(&dir) == before, "the refusal changed something on disk");
    });
}

#[test]
fn another_targets_folder_is_refused() {
    let expected = Identity { target: TargetId(4), ..identity() };
    refused(expected, Kind::WrongIdentity, &["target 3", "target 4", "swapped"], |_| {});
}

#[test]
fn another_clusters_folder_is_refused() {
    let expected = Identity { cluster: "00000000-0000-4000-8000-000000000002".to_string(), ..identity() };
    refused(expected, Kind::WrongIdentity, &["000000000001", "000000000002"], |_| {});
}

#[test]
fn a_folder_without_a_superblock_is_refused() {
    refused(identity(), Kind::NotATarget, &["mounted"], |dir| {
        std::fs::remove_file(dir.join("target.toml")).unwrap()
    });
}

#[test]
fn a_damaged_superblock_is_refused() {
    refused(identity(), Kind::Damaged, &["target.toml", "checksum"], |dir| {
        let path = dir.join("target.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("target = 3", "target = 4")).unwrap();
    });
}

#[test]
fn a_newer_format_is_refused() {
    refused(identity(), Kind::NewerVersion, &["format 2", "up to 1"], |dir| {
        let path = dir.join("target.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("format = 1", "format = 2")).unwrap();
    });
}

#[test]
fn a_directory_that_is_not_there_is_refused() {
    let error =
        run(async { Store::open(Path::new("/nonexistent"), &identity(), Options::default()).await.err() });
    assert_eq!(error.expect("it can't open").kind(), Kind::NotATarget);
}

#[test]
fn a_target_is_not_formatted_over() {
    with_target(|dir| async move {
        let before = content(&dir);
        let error = Store::format(&dir, &identity()).await.expect_err("something is there");
        assert_eq!(error.kind(), Kind::NotEmpty);
        assert!(content(&dir) == before, "the refusal changed something on disk");
        let (_, report) = open(&dir).await;
        assert!(!report.was_needed);
    });
}
