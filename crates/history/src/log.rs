//! A file that only grows, record by record, and is read whole.
//!
//! The longest read tells the order of all records that anybody has seen, so that the state of the
//! log is a number: how many records it has.

use crate::model::Model;
use crate::operation::Operation;
use std::collections::BTreeMap;

/// Number of a record; no two of a history are equal.
pub type RecordId = u64;

/// Something done to a log, as callers saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Appended this.
    Append(RecordId),
    /// Found these, from first to last.
    Read(Vec<RecordId>),
}

/// The same with places in the order of records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    /// Appended the record that lies at this place; `None`: nobody has seen it.
    Append { record: RecordId, place: Option<usize> },
    /// Found so many records, the last of which is this one.
    Read { length: usize, last: Option<RecordId> },
}

/// The log.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Records that anybody has seen.
    seen: usize,
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
            Action::Append { place: None, .. } => return (*state >= self.seen).then_some(state + 1),
            Action::Read { length, .. } => length == *state,
        };
        possible.then_some(*state)
    }

    fn only_looks(&self, action: &Action) -> bool {
        matches!(action, Action::Read { .. })
    }

    /// Each read.
    fn removable(&self, operations: &[Operation<Action>]) -> Vec<Vec<usize>> {
        let looks = |index: &usize| self.only_looks(&operations[*index].action);
        (0..operations.len()).filter(looks).map(|index| vec![index]).collect()
    }

    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Append { record, place: Some(place) } => {
                format!("append record {record} (which is at place {place})")
            }
            Action::Append { record, place: None } => format!("append record {record} (which nobody finds)"),
            Action::Read { length, last: Some(last) } => {
                format!("read -> {length} records, the last is {last}")
            }
            Action::Read { length, last: None } => format!("read -> {length} records"),
        }
    }

    fn describe_state(&self, state: &usize) -> String {
        format!("holds {state} records")
    }
}

/// Finds the order of the records. An error says what no order can explain.
pub fn prepare(operations: Vec<Operation<Seen>>) -> Result<(Log, Vec<Operation<Action>>), String> {
    let order = order(&operations)?;
    let mut places = BTreeMap::new();
    for (place, record) in order.iter().enumerate() {
        if places.insert(*record, place).is_some() {
            return Err(format!("record {record} is there twice"));
        }
    }
    let mut appended = std::collections::BTreeSet::new();
    // Until when the record at each place must have been appended: when the first read that goes so
    // far returned.
    let mut found_by = vec![u64::MAX; order.len()];
    for operation in &operations {
        match &operation.action {
            Seen::Append(record) if !appended.insert(*record) => {
                return Err(format!("record {record} was appended twice; a history needs unique records"));
            }
            Seen::Append(_) => {}
            Seen::Read(records) => {
                let end = operation.end();
                found_by[..records.len()].iter_mut().for_each(|first| *first = end.min(*first));
            }
        }
    }
    if let Some(record) = order.iter().find(|record| !appended.contains(record)) {
        return Err(format!("record {record} was found, and nobody has appended it here"));
    }
    let translate = |operation: Operation<Seen>| {
        let Operation { caller, called, mut returned, action } = operation;
        let action = match action {
            Seen::Append(record) => Action::Append { record, place: places.get(&record).copied() },
            Seen::Read(records) => Action::Read { length: records.len(), last: records.last().copied() },
        };
        if let (None, Action::Append { place, .. }) = (returned, &action) {
            // Its effect is open, but not if it was found, and nobody's business if it wasn't.
            returned = Some(found_by[(*place)?].max(called));
        }
        Some(Operation { caller, called, returned, action })
    };
    let operations = operations.into_iter().filter_map(translate).collect();
    Ok((Log { seen: order.len() }, operations))
}

/// The longest read, of which all others must be beginnings.
fn order(operations: &[Operation<Seen>]) -> Result<Vec<RecordId>, String> {
    let reads = || {
        operations.iter().filter_map(|operation| match &operation.action {
            Seen::Read(records) => Some((operation, records)),
            Seen::Append(_) => None,
        })
    };
    let Some((long_reader, longest)) = reads().max_by_key(|(_, records)| records.len()) else {
        return Ok(Vec::new());
    };
    for (reader, records) in reads() {
        if let Some(place) = (0..records.len()).find(|&place| records[place] != longest[place]) {
            return Err(format!(
                "at place {place} {} found record {}, and {} found record {}: one was lost or lies over the other",
                reader.caller, records[place], long_reader.caller, longest[place]
            ));
        }
    }
    Ok(longest.clone())
}
