//! Acknowledged commits survive `kill -9`.
//!
//! This test has its own binary: between fork and exec its child holds all open descriptors of the
//! process, and with them the locks of stores that other tests close and open again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "this test uses a part of it")]
#[path = "it/support.rs"]
mod support;

use kv::{Durability, Embedded, Engine, Writer};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use support::{block_on, put};

/// Directory of the child's store. Set only for the child, which is this test binary started again.
const CHILD_DIR: &str = "WEFT_KV_KILL_DIR";

/// Acknowledgements after which the child is killed; all rounds use the same store.
const KILL_AFTER: [usize; 6] = [1, 37, 500, 2_000, 3, 1_000];

/// The process that is killed. Commits numbered batches and prints each number once committed; ends
/// only by being killed.
fn commit_for_ever(dir: &Path) {
    let engine: Arc<dyn Engine> = Arc::new(Embedded::open(dir).unwrap());
    let first = count(&*engine);
    let writer = Writer::new(engine, Durability::Process);
    let mut out = std::io::stdout().lock();
    for number in first.. {
        // Some values exceed the journal's write buffer, so that records are torn at every
        // position.
        let value = format!("{number}").repeat(1 + number % 7 * 300);
        block_on(writer.commit(put(&format!("{number:08}"), &value))).unwrap();
        writeln!(out, "acked {number}").unwrap();
        out.flush().unwrap();
    }
}

/// Returns the number of batches, which must be a gapless prefix.
fn count(engine: &dyn Engine) -> usize {
    let pairs = engine.scan(b"", b"\xff", usize::MAX).unwrap();
    for (number, (key, value)) in pairs.iter().enumerate() {
        assert_eq!(key, format!("{number:08}").as_bytes());
        assert_eq!(value, format!("{number}").repeat(1 + number % 7 * 300).as_bytes());
    }
    pairs.len()
}

#[test]
fn acknowledged_commits_survive_the_death_of_the_process() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return commit_for_ever(dir.as_ref());
    }
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for acks in KILL_AFTER {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "acknowledged_commits_survive_the_death_of_the_process", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        // The pipe holds what the child acknowledged until its death, so it is read to the end.
        for line in lines.map_while(Result::ok) {
            // The harness may print the test's name in front of the first acknowledgement.
            let Some((_, number)) = line.split_once("acked ") else { continue };
            acknowledged = acknowledged.max(number.parse::<usize>().unwrap() + 1);
            seen += 1;
            if seen == acks {
                child.kill().unwrap();
            }
        }
        assert!(seen >= acks, "the child ended by itself after {seen} acknowledgements");
        child.wait().unwrap();
        let engine = Embedded::open(dir.path()).unwrap();
        let found = count(&engine);
        assert!(found >= acknowledged, "{acknowledged} acknowledged, {found} found");
    }
}
