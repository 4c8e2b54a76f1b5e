//! The format of a backup stays the same: backups outlive versions.

use crate::support::make_backup;
use backup::{Attached, Chain, Plan, Reader};
use kv::{Batch, Embedded, Engine};
use std::path::Path;
use std::sync::Arc;

/// Set to write the images again.
const WRITE: &str = "WEFT_NEW_GOLDEN";

fn images() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn make(dir: &Path) -> [std::path::PathBuf; 2] {
    let engine = Arc::new(Embedded::open(&dir.join("meta")).unwrap());
    let write = |writes: &[(&str, Option<&'static str>)]| {
        let writes = writes.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.map(Into::into))).collect();
        engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
    };
    let full = dir.join("full.weftcopy");
    let changes = dir.join("changes.weftcopy");
    let plan = Plan {
        path: full.clone(),
        id: "0123456789abcdef0123456789abcdef".into(),
        cluster: "01234567-89ab-4def-8123-456789abcdef".into(),
        name: "scratch".into(),
        partitions: 64,
        created_s: 1_700_000_000,
        version: "0.1.0".into(),
        base: None,
        files: vec![Attached { name: "weft.toml".into(), mode: 0o600, content: b"who\n".to_vec() }],
    };
    write(&[("a", Some("1")), ("b", Some("")), ("c", Some("3"))]);
    make_backup(&engine, &plan).unwrap();
    write(&[("a", None), ("c", Some("4")), ("d", Some("5"))]);
    let base = Some(Chain::find(&full).unwrap());
    let id = "fedcba9876543210fedcba9876543210".into();
    let plan = Plan { path: changes.clone(), id, base, created_s: 1_700_000_001, files: vec![], ..plan };
    make_backup(&engine, &plan).unwrap();
    [full, changes]
}

#[test]
fn the_bytes_are_frozen_and_old_ones_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let made = make(dir.path());
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(images()).unwrap();
        made.iter()
            .for_each(|path| _ = std::fs::copy(path, images().join(path.file_name().unwrap())).unwrap());
    }
    for path in &made {
        let image = std::fs::read(images().join(path.file_name().unwrap())).unwrap();
        assert!(std::fs::read(path).unwrap() == image, "{}", path.display());
    }
    let chain = Chain::find(&images().join("changes.weftcopy")).unwrap();
    let mut merged = chain.merge().unwrap();
    let mut pairs = Vec::new();
    while let Some(pair) = merged.next_pair().unwrap() {
        pairs.push(pair);
    }
    assert_eq!(pairs, [("b".into(), "".into()), ("c".into(), "4".into()), ("d".into(), "5".into())]);
    assert_eq!(Reader::open(&images().join("full.weftcopy")).unwrap().files()[0].name, "weft.toml");
}
