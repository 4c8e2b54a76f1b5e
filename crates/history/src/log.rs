//! A file to which records are appended, and which is read as a whole.
//!
//! The longest read shows the order of all records that were read. So the state of the log is a
//! number: how many records it has.

use crate::model::Model;
use crate::operation::Operation;
use std::collections::BTreeMap;

/// Number of a record, unique in a history.
pub type RecordId = u64;

/// An operation on a log, as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Appended this record.
    Append(RecordId),
    /// Read these records, from first to last.
    Read(Vec<RecordId>),
}

/// An operation with positions in the order of records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    /// Appended the record at this position; `None`: no read contains it.
    Append { record: RecordId, place: Option<usize> },
    /// Read this many records, with this last one.
    Read { length: usize, last: Option<RecordId> },
}

/// The sequential log.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Number of records that were read.
    records: usize,
}

impl Model for Log {
    type Action = Action;
    /// Number of records.
    type State = usize;

    fn initial(&self) -> usize {
        0
    }

    fn step(&self, state: &usize, action: &Action) -> Option<usize> {
        let possible = match *action {
            Action::Append { place: Some(place), .. } => return (place == *state).then_some(state + 1),
            Action::Append { place: None, .. } => return (*state >= self.records).then_some(state + 1),
            Action::Read { length, .. } => length == *state,
        };
        possible.then_some(*state)
    }

    fn is_read_only(&self, action: &Action) -> bool {
        matches!(action, Action::Read { .. })
    }

    /// Each read separately.
    fn removable(&self, operations: &[Operation<Action>]) -> Vec<Vec<usize>> {
        let is_read_only = |index: &usize| self.is_read_only(&operations[*index].action);
        (0..operations.len()).filter(is_read_only).map(|index| vec![index]).collect()
    }

    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Append { record, place: Some(place) } => {
                format!("append record {record} (at position {place})")
            }
            Action::Append { record, place: None } => {
                format!("append record {record} (which no read contains)")
            }
            Action::Read { length, last: Some(last) } => {
                format!("read -> {length} records, the last one is {last}")
            }
            Action::Read { length, last: None } => format!("read -> {length} records"),
        }
    }

    fn describe_state(&self, state: &usize) -> String {
        format!("holds {state} records")
    }
}

/// Determines the order of the records. The error describes what no order can explain.
pub fn prepare(operations: Vec<Operation<Observed>>) -> Result<(Log, Vec<Operation<Action>>), String> {
    let order = order(&operations)?;
    let mut positions = BTreeMap::new();
    for (place, record) in order.iter().enumerate() {
        if positions.insert(*record, place).is_some() {
            return Err(format!("record {record} occurs twice"));
        }
    }
    let mut appended = std::collections::BTreeSet::new();
    // The latest time at which the record at each position was appended: when the first read that
    // contains it returned.
    let mut appended_by = vec![u64::MAX; order.len()];
    for operation in &operations {
        match &operation.action {
            Observed::Append(record) if !appended.insert(*record) => {
                return Err(format!("record {record} was appended twice; a history needs unique records"));
            }
            Observed::Append(_) => {}
            Observed::Read(records) => {
                let end = operation.deadline();
                appended_by[..records.len()].iter_mut().for_each(|first| *first = end.min(*first));
            }
        }
    }
    if let Some(record) = order.iter().find(|record| !appended.contains(record)) {
        return Err(format!("record {record} was read, but never appended"));
    }
    let translate = |operation: Operation<Observed>| {
        let Operation { caller, called, mut returned, action } = operation;
        let action = match action {
            Observed::Append(record) => Action::Append { record, place: positions.get(&record).copied() },
            Observed::Read(records) => Action::Read { length: records.len(), last: records.last().copied() },
        };
        if let (None, Action::Append { place, .. }) = (returned, &action) {
            // An uncertain append took effect if it was read, and is irrelevant if it wasn't.
            returned = Some(appended_by[(*place)?].max(called));
        }
        Some(Operation { caller, called, returned, action })
    };
    let operations = operations.into_iter().filter_map(translate).collect();
    Ok((Log { records: order.len() }, operations))
}

/// Returns the longest read, of which all others must be prefixes.
fn order(operations: &[Operation<Observed>]) -> Result<Vec<RecordId>, String> {
    let reads = || {
        operations.iter().filter_map(|operation| match &operation.action {
            Observed::Read(records) => Some((operation, records)),
            Observed::Append(_) => None,
        })
    };
    let Some((long_reader, longest)) = reads().max_by_key(|(_, records)| records.len()) else {
        return Ok(Vec::new());
    };
    for (reader, records) in reads() {
        if let Some(place) = (0..records.len()).find(|&place| records[place] != longest[place]) {
            return Err(format!(
                "at position {place} {} read record {}, and {} read record {}: one was lost or overwritten",
                reader.caller, records[place], long_reader.caller, longest[place]
            ));
        }
    }
    Ok(longest.clone())
}
