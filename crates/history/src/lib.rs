//! A linearizability checker for what concurrent applications saw of a file system.
//!
//! A history contains for each operation when it was called, when it returned and what it answered.
//! It is *linearizable* if each operation can be assigned a moment between its call and its return,
//! so that the answers are those of an object that executes one operation at a time. A coherent
//! cluster guarantees that to applications on all its mounts. Each object is checked separately (a
//! block of a file, a name, a log), which is enough: a history is linearizable if the histories of
//! its objects are (Herlihy and Wing).
//!
//! An operation that failed with an error that leaves its outcome uncertain (EIO, ETIMEDOUT), or
//! that never returned, may have taken effect at any moment after its call, or not at all.
//!
//! The search is that of Wing and Gong with Lowe's memoization ("Testing for linearizability",
//! 2017), as in Porcupine: [`search`]. A [`Model`] is the sequential object: [`register`],
//! [`name`], [`log`]. [`record`] is the format in which a load generator records what it saw, and
//! [`judge`] checks a list of records.
//!
//! ```
//! use history::{Event, Limits, Record, judge};
//!
//! let event = |client, called_ns, event| Record {
//!     client, thread: 0, object: "block".to_string(), called_ns, returned_ns: Some(called_ns + 1), event,
//! };
//! let history = [
//!     event(0, 10, Event::Write { value: 1 }),
//!     event(1, 20, Event::Read { value: 0 }),
//! ];
//! assert_eq!(judge(&history, Limits::default()).violations.len(), 1, "a stale read");
//! ```
//!
//! A pure crate for tests: it does no I/O, and isn't shipped.

#![warn(missing_docs)]

mod judge;
pub mod log;
mod model;
pub mod name;
mod operation;
pub mod record;
pub mod register;
pub mod search;
mod shrink;
mod window;

pub use judge::{Limits, Report, judge};
pub use model::Model;
pub use operation::Operation;
pub use record::{Event, Record};
pub use search::Verdict;
pub use window::Window;
