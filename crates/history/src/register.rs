//! A block that is written and read as a whole.

use crate::model::Model;
use crate::operation::Operation;
use std::collections::{BTreeMap, BTreeSet};

/// Content of a block: a number that is unique among the writes of a history. An unwritten block
/// contains [`ZEROS`].
pub type Value = u64;

/// Content of a block before the first write.
pub const ZEROS: Value = 0;

/// An operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wrote this value.
    Write(Value),
    /// Read this value.
    Read(Value),
}

/// The sequential block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Register;

impl Model for Register {
    type Action = Action;
    type State = Value;

    fn initial(&self) -> Value {
        ZEROS
    }

    fn step(&self, state: &Value, action: &Action) -> Option<Value> {
        match *action {
            Action::Write(value) => Some(value),
            Action::Read(value) => (value == *state).then_some(value),
        }
    }

    fn is_read_only(&self, action: &Action) -> bool {
        matches!(action, Action::Read(_))
    }

    /// All operations on each value, and each read separately.
    fn removable(&self, operations: &[Operation<Action>]) -> Vec<Vec<usize>> {
        let mut by_value: BTreeMap<Value, Vec<usize>> = BTreeMap::new();
        let mut reads = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let (Action::Write(value) | Action::Read(value)) = operation.action;
            by_value.entry(value).or_default().push(index);
            if self.is_read_only(&operation.action) {
                reads.push(vec![index]);
            }
        }
        by_value.into_values().chain(reads).collect()
    }

    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Write(value) => format!("write {value}"),
            Action::Read(value) => format!("read -> {value}"),
        }
    }

    fn describe_state(&self, state: &Value) -> String {
        format!("holds {state}")
    }
}

/// Removes operations that only slow down the search. An uncertain write either was read, and then
/// took effect before that read returned, or is irrelevant. The error describes what no order can
/// explain.
pub fn prepare(operations: Vec<Operation<Action>>) -> Result<Vec<Operation<Action>>, String> {
    let mut written = BTreeSet::from([ZEROS]);
    let mut read_by: BTreeMap<Value, u64> = BTreeMap::new();
    for operation in &operations {
        match operation.action {
            Action::Write(value) if !written.insert(value) => {
                return Err(format!("{value} was written twice; a history needs unique values"));
            }
            Action::Write(_) => {}
            Action::Read(value) => {
                let first = read_by.entry(value).or_insert(u64::MAX);
                *first = operation.deadline().min(*first);
            }
        }
    }
    let unwritten_read = operations.iter().find(|operation| match operation.action {
        Action::Read(value) => !written.contains(&value),
        Action::Write(_) => false,
    });
    if let Some(read) = unwritten_read {
        return Err(format!(
            "{}: {}, a value that was never written",
            read.caller,
            Register.describe(&read.action)
        ));
    }
    let with_return = |mut operation: Operation<Action>| {
        if let (None, Action::Write(value)) = (operation.returned, operation.action) {
            // A read that returned before the write was called remains a contradiction for the
            // search.
            operation.returned = Some((*read_by.get(&value)?).max(operation.called));
        }
        Some(operation)
    };
    Ok(operations.into_iter().filter_map(with_return).collect())
}
