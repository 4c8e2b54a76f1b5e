//! The runtime on the ring of Linux 5.14: no 128-byte entries, no set-up flags.

use std::process::Command;

/// Set in the process that the test starts, which is itself.
const LIMIT: (&str, &str) = ("WEFT_IO_URING", "basic");

#[test]
fn files_and_sockets_work_on_a_plain_ring() {
    if std::env::var_os(LIMIT.0).is_some() {
        return;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let ended = tests.args(["files::", "sockets::", "cores::"]).env(LIMIT.0, LIMIT.1).output().unwrap();
    let report = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{report}");
    assert!(!report.contains("running 0 tests"), "{report}");
}

#[test]
fn the_limit_is_reported_as_fallbacks() {
    if std::env::var_os(LIMIT.0).is_some() {
        assert_eq!(rt::io_uring_support().unwrap().fallbacks().len(), 2);
        return;
    }
    let mut itself = Command::new(std::env::current_exe().unwrap());
    itself.args(["plain_ring::the_limit_is_reported_as_fallbacks", "--exact"]).env(LIMIT.0, LIMIT.1);
    assert!(itself.status().unwrap().success());
}
