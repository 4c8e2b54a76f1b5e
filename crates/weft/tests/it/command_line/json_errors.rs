//! With `--json`, errors are JSON documents as well.

use super::{stderr_text, stopped_node, weft};
use serde_json::Value;

fn error_of(arguments: &[&str], status: i32) -> Value {
    let failed = weft(arguments);
    assert_eq!(failed.status.code(), Some(status), "{arguments:?}: {}", stderr_text(&failed));
    assert!(failed.stdout.is_empty(), "{arguments:?}: only results are printed there");
    let line = stderr_text(&failed);
    assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    let mut document: Value = serde_json::from_str(&line).unwrap();
    document["error"].take()
}

#[test]
fn failures_and_wrong_calls_are_documents() {
    let base = tempfile::tempdir().unwrap();
    let dir = stopped_node(base.path());
    let error = error_of(&["status", "--json", "--dir", &dir], 1);
    assert_eq!((error["errno"].as_i64(), error["name"].as_str()), (Some(107), Some("ENOTCONN")));
    assert!(error["message"].as_str().unwrap().contains("is not running"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("weft serve --dir"), "{error}");

    let error = error_of(&["target", "lits", "--json"], 64);
    assert_eq!(error["name"], "EINVAL");
    assert!(error["hint"].as_str().unwrap().contains("did you mean list?"), "{error}");

    let absent = base.path().join("absent");
    error_of(&["fsck", "--json", "--dir", absent.to_str().unwrap()], 8);
}
