//! The behaviour of a sequential object.

use crate::operation::Operation;
use std::hash::Hash;

/// An object that executes one operation at a time.
pub trait Model {
    /// An operation with its answer. Two equal actions are interchangeable.
    type Action: Clone + PartialEq;
    /// The complete state of the object.
    type State: Clone + Eq + Hash;

    /// Returns the initial state.
    fn initial(&self) -> Self::State;

    /// Returns the state after the action; `None` if the object wouldn't give this answer in this
    /// state.
    ///
    /// An action with an uncertain outcome is possible in each state.
    fn step(&self, state: &Self::State, action: &Self::Action) -> Option<Self::State>;

    /// Whether the action is read-only in every state.
    fn is_read_only(&self, action: &Self::Action) -> bool;

    /// Returns sets of operations that can each be removed from a linearizable history, also
    /// together, without making it non-linearizable.
    ///
    /// They serve to reduce a violation to a readable size.
    fn removable(&self, operations: &[Operation<Self::Action>]) -> Vec<Vec<usize>>;

    /// Describes an action.
    fn describe(&self, action: &Self::Action) -> String;

    /// Describes a state.
    fn describe_state(&self, state: &Self::State) -> String;
}
