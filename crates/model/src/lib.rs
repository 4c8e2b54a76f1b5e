//! The protocol of mirrored groups as a small state machine, to be checked in all its states.
//!
//! One region of one chunk file on 2 or 3 members, a client that writes values 1, 2, ... one after
//! the other, others that read from any member, and management, which alone says who is in sync.
//! Processes are killed, lose power, are cut off; messages are lost with whom they were for. Time
//! is abstract: a serving lease ends some time, and management acts on a member's silence only when
//! its lease has ended.
//!
//! What is checked: nobody reads less than what was acknowledged or read before; what was synced
//! survives even if all members lose power; and where everybody is in sync and nothing is under
//! way, all copies are equal. Each safeguard can be [left out](Safeguards), to see that it is
//! needed.

mod member;
mod rules;
mod state;

pub use rules::{Action, Protocol};
pub use state::{Consistency, Faults, MAX_MEMBERS, Member, Message, Record, Safeguards, State, Succession};
