//! What a sequential object does.

use crate::operation::Operation;
use std::hash::Hash;

/// An object on which one thing happens at a time.
pub trait Model {
    /// An operation with its answer. Two equal actions are interchangeable.
    type Action: Clone + PartialEq;
    /// All there is to know of the object.
    type State: Clone + Eq + Hash;

    /// The state before everything.
    fn initial(&self) -> Self::State;

    /// The state after the action; `None` when the object wouldn't answer so in this state.
    ///
    /// An action whose answer isn't known answers as it does in each state.
    fn step(&self, state: &Self::State, action: &Self::Action) -> Option<Self::State>;

    /// Whether the action never changes anything, in no state.
    fn only_looks(&self, action: &Self::Action) -> bool;

    /// Sets of operations of which each can be left out of a linearizable history without making it
    /// one that isn't, also together.
    ///
    /// With them a violation is cut down to what a person can read.
    fn removable(&self, operations: &[Operation<Self::Action>]) -> Vec<Vec<usize>>;

    /// An action in words.
    fn describe(&self, action: &Self::Action) -> String;

    /// A state in words.
    fn describe_state(&self, state: &Self::State) -> String;
}
