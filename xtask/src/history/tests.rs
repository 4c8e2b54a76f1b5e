//! Tests of load and checker on plain directories: one file system passes, and separate directories
//! that pretend to be one fail.

use super::{LoadOptions, Mix, Outcome, load, read};
use ::history::{Limits, Report, judge};
use std::path::PathBuf;

/// Runs a short load on the folders and checks its history. Torn reads are accepted, since local
/// file systems permit them.
fn run_on(mounts: Vec<PathBuf>) -> (Outcome, Report) {
    let out = tempfile::NamedTempFile::new().unwrap();
    let options = LoadOptions {
        mounts,
        threads: 3,
        seconds: 2,
        calls: 2000,
        until_told: false,
        seed: 1,
        sync_names: true,
        grace: 30,
        mix: Mix::ByEpoch,
        out: out.path().to_path_buf(),
    };
    let outcome = load::run(&options).unwrap();
    let records = read(out.path()).unwrap();
    assert_eq!(records.len() as u64, outcome.calls, "each call is on record once");
    (outcome, judge(&records, Limits { tolerate_torn_reads: true, ..Limits::default() }))
}

#[test]
fn one_directory_is_coherent() {
    let dir = tempfile::tempdir().unwrap();
    let other_way = dir.path().join(".");
    let (outcome, report) = run_on(vec![dir.path().to_path_buf(), other_way]);
    assert!(report.is_linearizable(), "{report}");
    assert_eq!((outcome.errors.len(), outcome.stuck), (0, 0));
    assert!(report.concurrent > 100 && report.objects > 20, "too little happened: {report}");
}

#[test]
fn two_directories_are_not_one() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (_, report) = run_on(dirs.iter().map(|dir| dir.path().to_path_buf()).collect());
    assert!(report.undecided.is_empty(), "{report}");
    // Each kind of object must reveal it.
    for kind in ["near block", "far block", "name", "log", "replaced", "length"] {
        assert!(report.violations.iter().any(|violation| violation.contains(kind)), "{kind}: {report}");
    }
}

#[test]
fn an_outcome_survives_the_pipe() {
    let errors = [("Input/output error (os error 5)".to_string(), 3)].into();
    let first_errors = vec!["12:00:00 UTC, \"mount\" 1".to_string()];
    let outcome = Outcome { calls: 7, errors, first_errors, stuck: 1, zero_reads: 2 };
    assert_eq!(Outcome::parse(&outcome.to_json()), Some(outcome));
    assert_eq!(Outcome::parse("no json"), None);
}
