//! Known anomalies, each beside a similar valid history.

use crate::notation::{accepted, at, open, report, violation};
use history::{Event, Limits, judge};

fn write(value: u64) -> Event {
    Event::Write { value }
}

fn read(value: u64) -> Event {
    Event::Read { value }
}

fn create(inode: u64) -> Event {
    Event::Create { inode: Some(inode) }
}

fn lookup(inode: u64) -> Event {
    Event::Look { inode }
}

fn append(record: u64) -> Event {
    Event::Append { record }
}

fn read_log(records: &[u64]) -> Event {
    Event::ReadLog { records: records.to_vec() }
}

#[test]
fn stale_read() {
    accepted(&[at(0, 0, 10, write(1)), at(1, 20, 30, write(2)), at(0, 25, 50, read(1))]);
    let window = violation(&[
        at(0, 0, 10, write(1)),
        at(1, 11, 12, read(1)),
        at(1, 20, 30, write(2)),
        at(0, 40, 50, read(1)),
        at(0, 60, 70, read(2)),
        at(0, 80, 90, write(3)),
    ]);
    assert!(
        window.contains("mount 0 thread 0: read -> 1    <- inconsistent from this answer on"),
        "{window}"
    );
    // The write of 1, the write of 2, and the stale read, without irrelevant or later operations.
    assert_eq!(window.lines().count(), 4, "{window}");
}

#[test]
fn time_goes_back_between_two_readers() {
    let both = |second: u64| {
        [
            at(0, 0, 100, write(1)),
            at(1, 10, 20, read(1)),
            at(2, 30, 40, read(second)),
            at(2, 110, 120, read(1)),
        ]
    };
    accepted(&both(1));
    violation(&both(0));
}

#[test]
fn lost_update() {
    violation(&[at(0, 0, 10, write(1)), at(1, 20, 30, read(0))]);
    // Both wrote, and the last append isn't there, although no append was in progress any more.
    violation(&[
        at(0, 0, 10, write(1)),
        at(1, 20, 30, write(2)),
        at(0, 40, 50, read(2)),
        at(1, 60, 70, read(1)),
    ]);
}

#[test]
fn a_write_that_failed_may_happen_late_or_never_but_not_twice() {
    accepted(&[open(0, 0, write(1)), at(1, 10, 20, read(0))]);
    accepted(&[open(0, 0, write(1)), at(1, 10, 20, read(0)), at(1, 30, 40, read(1))]);
    violation(&[
        open(0, 0, write(1)),
        at(1, 10, 20, read(1)),
        at(1, 30, 40, write(2)),
        at(1, 50, 60, read(2)),
        at(1, 70, 80, read(1)),
    ]);
    violation(&[at(1, 10, 20, read(1)), open(0, 30, write(1))]);
}

#[test]
fn content_from_nowhere_and_torn_content() {
    let description = violation(&[at(0, 0, 10, write(1)), at(1, 20, 30, read(7))]);
    assert!(description.contains("read -> 7, a value that was never written"), "{description}");
    let written = [at(0, 0, 10, write(1)), at(1, 20, 30, torn([1, 0], false))];
    assert!(violation(&written).contains("parts of the contents [1, 0]"));
    let forgiving = Limits { tolerate_torn_reads: true, ..Limits::default() };
    assert!(judge(&written, forgiving).is_linearizable());
}

fn torn(values: [u64; 2], cached: bool) -> Event {
    Event::TornRead { values: values.to_vec(), cached }
}

#[test]
fn a_page_that_is_being_written_on_the_same_mount_may_be_seen_half_done() {
    let written = at(0, 0, 50, write(1));
    accepted(&[written.clone(), at(0, 20, 30, torn([1, 0], true))]);
    accepted(&[written.clone(), at(0, 20, 30, torn([0, 1], true)), at(1, 60, 70, read(1))]);
    // Past the page cache, from another mount, afterwards, or of other contents than these.
    violation(&[written.clone(), at(0, 20, 30, torn([1, 0], false))]);
    violation(&[written.clone(), at(1, 20, 30, torn([1, 0], true))]);
    violation(&[written.clone(), at(0, 60, 70, torn([1, 0], true))]);
    violation(&[written.clone(), at(0, 60, 90, write(2)), at(0, 120, 130, torn([2, 1], true))]);
    violation(&[written.clone(), at(0, 20, 30, Event::TornRead { values: vec![0, 1, 0], cached: true })]);
    let limits = Limits { is_one_mount: true, ..Limits::default() };
    assert!(judge(&[written, at(1, 20, 30, torn([1, 0], true))], limits).is_linearizable());
}

#[test]
fn two_winners_of_an_exclusive_create() {
    accepted(&[at(0, 0, 50, create(7)), at(1, 10, 60, Event::CreateExists)]);
    violation(&[at(0, 0, 50, create(7)), at(1, 10, 60, create(8))]);
    accepted(&[at(0, 0, 50, create(7)), at(1, 10, 60, create(8)), at(1, 20, 30, Event::Unlink)]);
}

#[test]
fn two_unlinks_of_one_file() {
    let (made, gone) = (at(0, 0, 10, create(7)), at(0, 20, 40, Event::Unlink));
    accepted(&[made.clone(), gone.clone(), at(1, 20, 40, Event::UnlinkMissing)]);
    violation(&[made, gone, at(1, 20, 40, Event::Unlink)]);
}

#[test]
fn a_stale_name() {
    let made = at(0, 0, 10, create(7));
    violation(&[made.clone(), at(1, 20, 30, Event::LookMissing)]);
    violation(&[made.clone(), at(0, 20, 30, Event::Unlink), at(1, 40, 50, lookup(7))]);
    violation(&[made.clone(), at(1, 20, 30, lookup(8))]);
    accepted(&[made, at(0, 20, 40, Event::Unlink), at(1, 30, 50, lookup(7))]);
}

#[test]
fn changes_of_a_name_that_failed() {
    let nothing = Event::Create { inode: None };
    accepted(&[open(0, 0, nothing.clone()), at(1, 10, 20, Event::LookMissing), at(1, 30, 40, lookup(7))]);
    // Its inode may be any, but only one.
    violation(&[open(0, 0, nothing.clone()), at(1, 10, 20, lookup(7)), at(1, 30, 40, lookup(8))]);
    violation(&[
        open(0, 0, nothing.clone()),
        at(1, 10, 20, lookup(7)),
        at(1, 30, 40, Event::Unlink),
        at(1, 50, 60, lookup(7)),
    ]);
    accepted(&[at(0, 0, 10, create(7)), open(1, 20, Event::Unlink), at(0, 30, 40, create(8))]);
    violation(&[at(0, 0, 10, create(7)), at(0, 30, 40, create(8)), open(1, 50, Event::Unlink)]);
}

#[test]
fn many_open_changes_of_one_name_stay_decidable() {
    let mut records = vec![at(0, 0, 1, create(1))];
    for round in 0..30 {
        records.push(open(1, 2 + round, Event::Unlink));
        records.push(open(2, 2 + round, Event::Create { inode: None }));
    }
    records.extend((0..60).map(|round| {
        let event = if round % 2 == 0 { Event::LookMissing } else { lookup(100 + round) };
        at(3, 100 + 10 * round, 105 + 10 * round, event)
    }));
    accepted(&records);
    records.push(at(3, 1000, 1001, Event::LookMissing));
    records.push(at(3, 1010, 1011, lookup(1000)));
    violation(&records);
}

#[test]
fn appends_over_each_other() {
    accepted(&[at(0, 0, 50, append(1)), at(1, 10, 60, append(2)), at(0, 70, 80, read_log(&[2, 1]))]);
    // The later one is at the position of the earlier one.
    violation(&[at(0, 0, 50, append(1)), at(1, 10, 60, append(2)), at(0, 70, 80, read_log(&[2]))]);
    let description = violation(&[
        at(0, 0, 5, append(1)),
        at(0, 6, 9, read_log(&[1])),
        at(1, 10, 15, append(2)),
        at(0, 20, 30, read_log(&[2])),
    ]);
    assert!(description.contains("one was lost or overwritten"), "{description}");
    violation(&[at(0, 0, 10, append(1)), at(1, 20, 30, append(2)), at(0, 70, 80, read_log(&[2, 1]))]);
}

#[test]
fn a_log_with_too_much_or_too_little() {
    violation(&[at(0, 0, 10, append(1)), at(1, 20, 30, read_log(&[]))]);
    assert!(violation(&[at(0, 0, 10, append(1)), at(1, 20, 30, read_log(&[1, 1]))]).contains("twice"));
    assert!(violation(&[at(1, 20, 30, read_log(&[5]))]).contains("never appended"));
    violation(&[at(1, 20, 30, read_log(&[1])), at(0, 40, 50, append(1))]);
    let rest = "8:xx".to_string();
    violation(&[at(0, 0, 10, append(1)), at(1, 20, 30, Event::TornLog { records: vec![1], rest })]);
}

#[test]
fn an_append_that_failed_is_there_once_or_not_at_all() {
    accepted(&[open(0, 0, append(1)), at(1, 10, 20, append(2)), at(1, 30, 40, read_log(&[2]))]);
    let late = [
        open(0, 0, append(1)),
        at(1, 10, 20, append(2)),
        at(1, 30, 40, read_log(&[2])),
        at(1, 50, 60, read_log(&[2, 1])),
    ];
    accepted(&late);
    violation(&[open(0, 0, append(1)), at(1, 10, 20, append(2)), at(1, 30, 40, read_log(&[1]))]);
}

#[test]
fn an_error_that_has_no_business_here() {
    let refused = Event::Refused { what: "write".to_string(), errno: 13 };
    assert!(violation(&[at(0, 0, 10, refused)]).contains("write failed with unexpected error 13"));
}

#[test]
fn objects_are_judged_one_by_one() {
    let mut other = at(1, 20, 30, read(0));
    other.object = "another".to_string();
    accepted(&[at(0, 0, 10, write(1)), other.clone()]);
    other.event = Event::LookMissing;
    other.object = "it".to_string();
    assert!(violation(&[at(0, 0, 10, write(1)), other]).contains("several types"));
}

#[test]
fn a_search_that_is_given_up_says_so() {
    let writers = (0..20).map(|client| at(client, 0, 100, write(u64::from(client) + 1)));
    let mut records: Vec<_> = writers.collect();
    records.push(at(30, 200, 210, read(3)));
    records.push(at(30, 220, 230, read(4)));
    let report = judge(&records, Limits { max_steps: 1000, ..Limits::default() });
    assert_eq!(report.undecided, [("it".to_string(), 1000)]);
    assert!(!report.is_linearizable() && report.violations.is_empty());
    assert!(report.to_string().contains("undecided after 1000 steps"), "{report}");
}

#[test]
fn the_report_counts_what_was_looked_at() {
    let report = report(&[at(0, 0, 50, write(1)), at(1, 10, 20, read(0)), open(1, 30, write(2))]);
    assert_eq!(
        (report.operations, report.concurrent, report.uncertain, report.objects),
        (3, 2, 1, 1),
        "{report}"
    );
    assert!(report.to_string().ends_with("linearizable"));
}
