//! The search for an order that explains a history.
//!
//! A node of the search is the set of operations that have taken effect, and the resulting state.
//! From it the search continues with every operation that may come next: one that was called before
//! any other of the remaining ones had returned. A known node isn't visited again, which shortens
//! the search if different orders of the same operations lead to the same state.
//!
//! Invariants:
//! - Operations with a return are sorted by their call, so that the set consists of everything
//!   below an index and a few more.
//! - If a read-only operation may come next and is possible, it comes first, and no alternative is
//!   tried: nothing is lost by that.
//! - Of several equal operations with an uncertain outcome only the first is tried; one that would
//!   change nothing is never tried.

use crate::model::Model;
use crate::operation::Operation;
use std::hash::Hash;

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// An order explains everything.
    Linearizable,
    /// No order explains everything.
    Violation(T),
    /// The search was abandoned at its limit.
    Undecided {
        /// Number of steps.
        steps: u64,
    },
}

/// Searches from the model's initial state, for at most `max_steps` steps.
pub fn search<M: Model>(model: &M, operations: &[Operation<M::Action>], max_steps: u64) -> Verdict<()> {
    search_from(model, &[model.initial()], operations, max_steps)
}

/// Searches from any of several states.
pub fn search_from<M: Model>(
    model: &M,
    states: &[M::State],
    operations: &[Operation<M::Action>],
    max_steps: u64,
) -> Verdict<()> {
    let mut ends = false;
    let outcome = Search::new(model, operations).run(states, max_steps, |_| {
        ends = true;
        Goal::Reached
    });
    match outcome {
        _ if ends => Verdict::Linearizable,
        Ok(()) => Verdict::Violation(()),
        Err(steps) => Verdict::Undecided { steps },
    }
}

/// Returns every state in which the operations, all of them with a return, can end; `None` if that
/// takes more than `max_steps`.
pub fn end_states<M: Model>(
    model: &M,
    operations: &[Operation<M::Action>],
    max_steps: u64,
) -> Option<Vec<M::State>> {
    let mut states: Vec<M::State> = Vec::new();
    let outcome = Search::new(model, operations).run(&[model.initial()], max_steps, |state| {
        if !states.contains(state) {
            states.push(state.clone());
        }
        Goal::Continue
    });
    outcome.ok().map(|()| states)
}

/// Whether a search that has reached an end continues with others.
enum Goal {
    Reached,
    Continue,
}

/// Nodes that the search has visited. It only tests for membership, so their order is never
/// visible.
#[allow(clippy::disallowed_types, reason = "its order is never seen")]
type Visited<S> = std::collections::HashSet<Node<S>>;

/// The operations that have taken effect, and the resulting state.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Node<S> {
    /// All operations with a return below this index have taken effect,
    completed_before: usize,
    /// and these above it, in ascending order,
    completed_ahead: Vec<usize>,
    /// and these without a return, in ascending order.
    open: Vec<usize>,
    state: S,
}

struct Search<'a, M: Model> {
    model: &'a M,
    /// Operations with a return, by call.
    closed: Vec<&'a Operation<M::Action>>,
    /// Operations without a return, by call.
    open: Vec<&'a Operation<M::Action>>,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, operations: &'a [Operation<M::Action>]) -> Search<'a, M> {
        let mut sorted: Vec<&Operation<M::Action>> = operations.iter().collect();
        sorted.sort_by_key(|operation| (operation.called, operation.deadline()));
        let (closed, open) = sorted.into_iter().partition(|operation| operation.returned.is_some());
        Search { model, closed, open }
    }

    /// Searches depth first. The error is the number of steps after which it was abandoned.
    fn run(
        &self,
        states: &[M::State],
        max_steps: u64,
        mut end: impl FnMut(&M::State) -> Goal,
    ) -> Result<(), u64> {
        let start = |state: &M::State| Node {
            completed_before: 0,
            completed_ahead: Vec::new(),
            open: Vec::new(),
            state: state.clone(),
        };
        let mut stack: Vec<Node<M::State>> = states.iter().map(start).collect();
        let mut seen: Visited<M::State> = stack.iter().cloned().collect();
        let mut steps = 0;
        while let Some(node) = stack.pop() {
            if node.completed_before == self.closed.len()
                && let Goal::Reached = end(&node.state)
            {
                return Ok(());
            }
            if steps == max_steps {
                return Err(steps);
            }
            steps += 1;
            // The most likely one is pushed last.
            for next in self.successors(&node).into_iter().rev() {
                if seen.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
        Ok(())
    }

    /// Returns every node that one more operation leads to, the operation with the earliest return
    /// first.
    fn successors(&self, node: &Node<M::State>) -> Vec<Node<M::State>> {
        let mut bound = u64::MAX;
        let mut ready = Vec::new();
        for (index, operation) in self.closed.iter().enumerate().skip(node.completed_before) {
            if operation.called > bound {
                break;
            }
            if node.completed_ahead.binary_search(&index).is_err() {
                bound = bound.min(operation.deadline());
                ready.push(index);
            }
        }
        ready.retain(|&index| self.closed[index].called <= bound);
        ready.sort_by_key(|&index| self.closed[index].deadline());
        let mut found = Vec::new();
        for index in ready {
            let action = &self.closed[index].action;
            let Some(state) = self.model.step(&node.state, action) else { continue };
            let is_noop = state == node.state && self.model.is_read_only(action);
            let next = self.successor(node, index, state);
            if is_noop {
                return vec![next];
            }
            found.push(next);
        }
        found.extend(self.open_successors(node, bound));
        found
    }

    /// Returns the nodes that an operation without a return leads to.
    fn open_successors(&self, node: &Node<M::State>, bound: u64) -> Vec<Node<M::State>> {
        let mut found = Vec::new();
        let mut tried: Vec<&M::Action> = Vec::new();
        for (index, operation) in self.open.iter().enumerate() {
            if operation.called > bound {
                break;
            }
            let action = &operation.action;
            let Err(place) = node.open.binary_search(&index) else { continue };
            if tried.contains(&action) {
                continue;
            }
            tried.push(action);
            let Some(state) = self.model.step(&node.state, action) else { continue };
            if state != node.state {
                let mut open = node.open.clone();
                open.insert(place, index);
                found.push(Node { open, state, ..node.clone() });
            }
        }
        found
    }

    fn successor(&self, node: &Node<M::State>, index: usize, state: M::State) -> Node<M::State> {
        let mut next = Node { state, ..node.clone() };
        let place = next.completed_ahead.partition_point(|&other| other < index);
        next.completed_ahead.insert(place, index);
        let done = next
            .completed_ahead
            .iter()
            .enumerate()
            .take_while(|(at, index)| node.completed_before + at == **index)
            .count();
        next.completed_ahead.drain(..done);
        next.completed_before += done;
        next
    }
}
