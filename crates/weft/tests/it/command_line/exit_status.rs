//! Each exit status of the table, from a command that ends with it. The verdicts of `weft health`
//! and the damage that `weft fsck` finds are tested beside their code, without a cluster.

use super::{stderr_text, stdout_text, stopped_node, weft};

#[test]
fn success_is_0() {
    for line in [&["--version"][..], &["--help"], &["help"], &["help", "target", "add"], &["plan", "--kinds"]]
    {
        let done = weft(line);
        assert_eq!(done.status.code(), Some(0), "{line:?}: {}", stderr_text(&done));
        assert!(!done.stdout.is_empty() && done.stderr.is_empty(), "{line:?}");
    }
}

#[test]
fn a_failure_is_1() {
    let base = tempfile::tempdir().unwrap();
    let dir = stopped_node(base.path());
    let failed = weft(&["status", "--dir", &dir]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr_text(&failed).contains("is not running"), "{}", stderr_text(&failed));
}

#[test]
fn a_wrong_call_is_64() {
    for line in [
        &["frobnicate"][..],
        &["target"],
        &["df", "--frobnicate"],
        &["client", "add", "a/b"],
        &["cluster", "init", "--name", "a b"],
        &["export", "set", "nowhere"],
        &["fsck", "relative/path"],
        &["plan"],
        &["help", "frobnicate"],
    ] {
        let failed = weft(line);
        assert_eq!(failed.status.code(), Some(64), "{line:?}: {}", stderr_text(&failed));
        assert!(stderr_text(&failed).contains("\nhint: "), "{line:?}: {}", stderr_text(&failed));
        assert!(failed.stdout.is_empty(), "{line:?}");
    }
}

#[test]
fn a_health_that_is_unknown_is_3() {
    let base = tempfile::tempdir().unwrap();
    let dir = stopped_node(base.path());
    assert_eq!(weft(&["health", "--dir", &dir]).status.code(), Some(3));
}

#[test]
fn a_check_that_fails_is_8() {
    let base = tempfile::tempdir().unwrap();
    let absent = base.path().join("absent");
    let failed = weft(&["fsck", "--dir", absent.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(8), "{}", stderr_text(&failed));
}

#[test]
fn the_helper_of_mount_ends_as_mount_expects() {
    let wrong = weft(&["mount-helper", "/nothing", "/nowhere", "-o", "frobnicate"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", stderr_text(&wrong));
    let failed = weft(&["mount-helper", "/nothing", "/nowhere"]);
    assert_eq!(failed.status.code(), Some(32), "{}", stderr_text(&failed));
}

#[test]
fn the_table_of_statuses_is_a_topic_of_help() {
    let table = stdout_text(&weft(&["help", "exit-status"]));
    for line in ["64  all but", " 2  health", " 8  fsck", "32  mount.fuse.weft"] {
        assert!(table.contains(line), "{line}: {table}");
    }
}

#[test]
fn the_code_of_a_finding_is_a_topic_of_help() {
    for (code, command) in
        [("target-full", "weft health"), ("damaged-content", "weft fsck"), ("kernel-too-old", "weft doctor")]
    {
        let text = stdout_text(&weft(&["help", code]));
        let is_entry = text.starts_with(&format!("{code}: a finding of {command}\n"));
        assert!(is_entry && text.contains("\nWhat to do: "), "{text}");
    }
}

#[test]
fn a_mount_that_fails_in_the_background_prints_its_error_once() {
    let base = tempfile::tempdir().unwrap();
    let dir = stopped_node(base.path());
    let absent = base.path().join("absent");
    let failed = weft(&["mount", &format!("{dir}/client.toml"), absent.to_str().unwrap()]);
    let text = stderr_text(&failed);
    assert_eq!(failed.status.code(), Some(1), "{text}");
    let starts: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["error:", "hint:"], "{text}");
}
