//! Short notations for histories.

use history::{Event, Limits, Record, Report, judge};

/// An operation of a mount; each mount has one thread.
pub fn at(client: u32, called_ns: u64, returned_ns: u64, event: Event) -> Record {
    Record { client, thread: 0, object: "it".to_string(), called_ns, returned_ns: Some(returned_ns), event }
}

/// An operation with an uncertain outcome.
pub fn open(client: u32, called_ns: u64, event: Event) -> Record {
    Record { returned_ns: None, ..at(client, called_ns, 0, event) }
}

/// The report on a history.
pub fn report(records: &[Record]) -> Report {
    judge(records, Limits::default())
}

/// The only violation of a history, as text.
#[track_caller]
pub fn violation(records: &[Record]) -> String {
    let report = report(records);
    assert_eq!((report.violations.len(), report.undecided.len()), (1, 0), "{report}");
    report.violations[0].clone()
}

#[track_caller]
pub fn accepted(records: &[Record]) {
    let report = report(records);
    assert!(report.is_linearizable(), "{report}");
}
