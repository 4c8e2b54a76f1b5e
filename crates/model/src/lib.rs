//! The protocol of mirrored groups as a small state machine, for exhaustive model checking.
//!
//! The model has one region of one chunk file on 2 or 3 members. One client writes values 1, 2, ...
//! one after the other, and others read from any member. Management alone decides which members are
//! in sync. Processes are killed, lose power, or are cut off; messages to them are lost with them.
//! Time is abstract: a serving lease ends at some time, and management acts on a member's silence
//! only after its lease has ended.
//!
//! The checker verifies that no client reads less than what was acknowledged or read before. Synced
//! data survives even if all members lose power. All replicas are equal when all members are in
//! sync and nothing is in flight. Each safeguard can be [left out](Safeguards), to show that it is
//! needed.

mod member;
mod rules;
mod state;

pub use rules::{Action, Protocol};
pub use state::{
    Consistency, Faults, MAX_MEMBERS, Member, Message, PrimaryChange, Record, Safeguards, State,
};
