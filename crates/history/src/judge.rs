//! Judges a list of records.

use crate::model::Model;
use crate::name::{self, Created, Found, Name, Unlinked};
use crate::operation::Operation;
use crate::record::{Event, Record};
use crate::register::{self, Register};
use crate::search::{Verdict, search};
use crate::shrink::shrink;
use crate::{log, window::Window};
use std::collections::BTreeMap;
use std::fmt;

/// Limits of the search, and tolerated behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of search steps for one object; a history without many uncertain outcomes
    /// needs about one for each operation.
    pub max_steps: u64,
    /// Ignores reads that caught a write half-done instead of treating them as violations: local
    /// file systems don't guarantee more.
    pub tolerate_torn_reads: bool,
    /// All clients of the history are one mount, with one page cache.
    pub is_one_mount: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_steps: 1_000_000, tolerate_torn_reads: false, is_one_mount: false }
    }
}

/// Result of a judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of operations.
    pub operations: usize,
    /// Number of those with an uncertain outcome.
    pub uncertain: usize,
    /// Number of objects.
    pub objects: usize,
    /// Number of operations that overlapped with another one on the same object; without them a
    /// history shows little.
    pub concurrent: usize,
    /// Descriptions of violations.
    pub violations: Vec<String>,
    /// Objects on which the search was abandoned, and the number of steps.
    pub undecided: Vec<(String, u64)>,
}

impl Report {
    /// Whether the history is linearizable.
    pub fn is_linearizable(&self) -> bool {
        self.violations.is_empty() && self.undecided.is_empty()
    }
}

/// Maximum number of violations that a report shows in full.
const MAX_SHOWN: usize = 5;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations on {} objects, {} of them concurrent, {} with an uncertain outcome: ",
            self.operations, self.objects, self.concurrent, self.uncertain
        )?;
        if self.is_linearizable() {
            return write!(f, "linearizable");
        }
        write!(f, "{} violations, {} objects undecided", self.violations.len(), self.undecided.len())?;
        for violation in self.violations.iter().take(MAX_SHOWN) {
            write!(f, "\n  {violation}")?;
        }
        for (object, steps) in self.undecided.iter().take(MAX_SHOWN) {
            write!(
                f,
                "\n  {object}: undecided after {steps} steps; hint: use a shorter run, or raise --max-steps"
            )?;
        }
        Ok(())
    }
}

/// Judges a history, each object separately.
pub fn judge(records: &[Record], limits: Limits) -> Report {
    let mut objects: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        objects.entry(&record.object).or_default().push(record);
    }
    let mut report = Report { operations: records.len(), objects: objects.len(), ..Report::default() };
    for (object, mut records) in objects {
        records.sort_by_key(|record| record.called_ns);
        report.uncertain += records.iter().filter(|record| record.returned_ns.is_none()).count();
        report.concurrent += concurrent(&records);
        match judge_object(object, &records, limits) {
            Verdict::Linearizable => {}
            Verdict::Violation(words) => report.violations.push(words),
            Verdict::Undecided { steps } => report.undecided.push((object.to_string(), steps)),
        }
    }
    report
}

/// Counts the operations that were called before an earlier one had returned. Records are sorted by
/// call.
fn concurrent(records: &[&Record]) -> usize {
    let mut last_return = None;
    let mut count = 0;
    for record in records {
        count += usize::from(Some(record.called_ns) <= last_return);
        last_return = last_return.max(Some(record.returned_ns.unwrap_or(record.called_ns)));
    }
    count
}

fn judge_object(object: &str, records: &[&Record], limits: Limits) -> Verdict<String> {
    let mut sorted = OperationsByType::default();
    for record in records {
        if is_page_cache_race(record, records, limits) {
            continue;
        }
        if let Err(message) = sorted.add(record, limits) {
            return Verdict::Violation(format!("{object}: {}: {message}", caller(record)));
        }
    }
    let OperationsByType { block, name, log } = sorted;
    let direct = |message| Verdict::Violation(format!("{object}: {message}"));
    match (block.is_empty(), name.is_empty(), log.is_empty()) {
        (true, true, true) => Verdict::Linearizable,
        (false, true, true) => match register::prepare(block) {
            Ok(operations) => check_object(&Register, object, &operations, limits),
            Err(message) => direct(message),
        },
        (true, false, true) => check_object(&Name, object, &name, limits),
        (true, true, false) => match log::prepare(log) {
            Ok((model, operations)) => check_object(&model, object, &operations, limits),
            Err(message) => direct(message),
        },
        _ => direct("records of several types; an object is a block, a name or a log".to_string()),
    }
}

/// Whether a read overlapped with a write in the page cache of its own kernel. Linux copies to and
/// from pages that are up to date without a lock (`filemap_read` of `mm/filemap.c`), on nearly
/// every file system, and no file system can prevent that. Such a read is ignored. A mix of other
/// contents than these two is a violation, and so is a torn read that bypassed the page cache.
fn is_page_cache_race(record: &Record, records: &[&Record], limits: Limits) -> bool {
    let Event::TornRead { values, cached: true } = &record.event else { return false };
    let [first, second] = values[..] else { return false };
    let until = record.returned_ns.unwrap_or(u64::MAX);
    records.iter().any(|other| {
        matches!(other.event, Event::Write { value } if value == first || value == second)
            && (limits.is_one_mount || other.client == record.client)
            && other.called_ns <= until
            && other.returned_ns.is_none_or(|returned| returned >= record.called_ns)
    })
}

fn check_object<M: Model>(
    model: &M,
    object: &str,
    operations: &[Operation<M::Action>],
    limits: Limits,
) -> Verdict<String> {
    match search(model, operations, limits.max_steps) {
        Verdict::Linearizable => Verdict::Linearizable,
        Verdict::Undecided { steps } => Verdict::Undecided { steps },
        Verdict::Violation(()) => {
            let window: Window = shrink(model, object, operations, limits.max_steps);
            Verdict::Violation(window.to_string())
        }
    }
}

/// Operations by type of object.
#[derive(Default)]
struct OperationsByType {
    block: Vec<Operation<register::Action>>,
    name: Vec<Operation<name::Action>>,
    log: Vec<Operation<log::Observed>>,
}

impl OperationsByType {
    /// Adds a record's operation. The error describes a record that is a violation by itself.
    fn add(&mut self, record: &Record, limits: Limits) -> Result<(), String> {
        let is_open = record.returned_ns.is_none();
        let name = |action| operation(record, action);
        match &record.event {
            Event::Write { value } => self.block.push(operation(record, register::Action::Write(*value))),
            Event::Append { record: id } => self.log.push(operation(record, log::Observed::Append(*id))),
            Event::Create { .. } if is_open => self.name.push(name(name::Action::Create(Created::Open))),
            Event::Create { inode } => self.name.push(name(name::Action::Create(Created::New(*inode)))),
            Event::Unlink if is_open => self.name.push(name(name::Action::Unlink(Unlinked::Open))),
            Event::Unlink => self.name.push(name(name::Action::Unlink(Unlinked::Done))),
            Event::Refused { what, errno } => {
                return Err(format!("{what} failed with unexpected error {errno}"));
            }
            // A read-only operation without an answer shows nothing.
            _ if is_open => {}
            Event::Read { value } => self.block.push(operation(record, register::Action::Read(*value))),
            Event::CreateExists => self.name.push(name(name::Action::Create(Created::Exists))),
            Event::UnlinkMissing => self.name.push(name(name::Action::Unlink(Unlinked::Missing))),
            Event::Look { inode } => self.name.push(name(name::Action::Lookup(Found::File(*inode)))),
            Event::LookMissing => self.name.push(name(name::Action::Lookup(Found::Missing))),
            Event::ReadLog { records } => {
                self.log.push(operation(record, log::Observed::Read(records.clone())))
            }
            Event::TornRead { .. } | Event::TornLog { .. } if limits.tolerate_torn_reads => {}
            Event::TornRead { values, .. } => return Err(format!("read parts of the contents {values:?}")),
            Event::TornLog { records, rest } => {
                return Err(format!("read invalid data after {} records: {rest:?}", records.len()));
            }
        }
        Ok(())
    }
}

fn operation<A>(record: &Record, action: A) -> Operation<A> {
    Operation { caller: caller(record), called: record.called_ns, returned: record.returned_ns, action }
}

fn caller(record: &Record) -> String {
    format!("mount {} thread {}", record.client, record.thread)
}
