//! Reduces a violation to the few operations that show it.
//!
//! It only removes what leaves a linearizable history linearizable, so that the remaining violation
//! is genuine:
//! - operations after the first moment at which no order explains the history;
//! - operations that the model names as removable;
//! - operations before a quiescent moment, which are replaced by the states that they can have led
//!   to.

use crate::model::Model;
use crate::operation::Operation;
use crate::search::{Verdict, end_states, search, search_from};
use crate::window::{Line, Window};

/// Maximum number of searches for removable operations: enough for some thousand operations of
/// which a few matter.
const MAX_TRIALS: usize = 1000;

/// A window of this many operations is short enough to be read from the object's initial state.
const READABLE: usize = 12;

/// Returns the window of a history that `search` classifies as a violation within `max_steps`.
pub fn shrink<M: Model>(
    model: &M,
    object: &str,
    operations: &[Operation<M::Action>],
    max_steps: u64,
) -> Window {
    let mut kept = shortest_violating_prefix(model, operations, max_steps);
    let decisive = kept.iter().filter_map(|operation| operation.returned).max();
    kept = without_removable(model, kept, max_steps);
    kept.sort_by_key(|operation| operation.called);
    let (states, from) = match kept.len() > READABLE {
        true => last_quiescent_split(model, &kept, max_steps),
        false => (Vec::new(), 0),
    };
    let line = |operation: &Operation<M::Action>| Line {
        called: operation.called,
        returned: operation.returned,
        caller: operation.caller.clone(),
        action: model.describe(&operation.action),
        is_decisive: operation.returned.is_some() && operation.returned == decisive,
    };
    Window {
        object: object.to_string(),
        before: states.iter().map(|state| model.describe_state(state)).collect(),
        lines: kept[from..].iter().map(line).collect(),
    }
}

fn is_violation<M: Model>(model: &M, operations: &[Operation<M::Action>], max_steps: u64) -> bool {
    search(model, operations, max_steps) == Verdict::Violation(())
}

/// Returns the shortest prefix that no order explains. Operations that hadn't returned by its end
/// have an uncertain outcome.
fn shortest_violating_prefix<M: Model>(
    model: &M,
    operations: &[Operation<M::Action>],
    max_steps: u64,
) -> Vec<Operation<M::Action>> {
    let until = |time: u64| -> Vec<Operation<M::Action>> {
        let called = operations.iter().filter(|operation| operation.called <= time);
        let cut = |operation: &Operation<M::Action>| Operation {
            returned: operation.returned.filter(|&returned| returned <= time),
            ..operation.clone()
        };
        called.map(cut).collect()
    };
    let mut returns: Vec<u64> = operations.iter().filter_map(|operation| operation.returned).collect();
    returns.sort_unstable();
    // A prefix of a linearizable history is linearizable, so there is one boundary.
    let boundary = returns.partition_point(|&time| !is_violation(model, &until(time), max_steps));
    returns.get(boundary).map_or_else(|| operations.to_vec(), |&time| until(time))
}

/// Removes the sets that the model names, in halves, quarters and so on, as long as the violation
/// remains.
fn without_removable<M: Model>(
    model: &M,
    operations: Vec<Operation<M::Action>>,
    max_steps: u64,
) -> Vec<Operation<M::Action>> {
    let groups = model.removable(&operations);
    let mut left_out = vec![false; operations.len()];
    let kept = |left_out: &[bool]| -> Vec<Operation<M::Action>> {
        operations.iter().zip(left_out).filter(|(_, out)| !**out).map(|(kept, _)| kept.clone()).collect()
    };
    let mut trials = 0;
    let mut size = groups.len().div_ceil(2);
    while size > 0 && trials < MAX_TRIALS {
        for chunk in groups.chunks(size) {
            let mut without = left_out.clone();
            chunk.iter().flatten().for_each(|&index| without[index] = true);
            if without == left_out || trials == MAX_TRIALS {
                continue;
            }
            trials += 1;
            if is_violation(model, &kept(&without), max_steps) {
                left_out = without;
            }
        }
        size /= 2;
    }
    kept(&left_out)
}

/// Finds the last quiescent moment after which the history is still a violation. Returns the states
/// before it, and the index of the first operation after it. Operations are sorted by call.
fn last_quiescent_split<M: Model>(
    model: &M,
    operations: &[Operation<M::Action>],
    max_steps: u64,
) -> (Vec<M::State>, usize) {
    let mut quiescent = Vec::new();
    let mut last_return = 0;
    for (index, operation) in operations.iter().enumerate() {
        if index > 0 && operation.called > last_return {
            quiescent.push(index);
        }
        last_return = last_return.max(operation.deadline());
    }
    for index in quiescent.into_iter().rev() {
        let (before, after) = operations.split_at(index);
        if let Some(states) = end_states(model, before, max_steps)
            && search_from(model, &states, after, max_steps) == Verdict::Violation(())
            && !states.is_empty()
        {
            return (states, index);
        }
    }
    (Vec::new(), 0)
}
