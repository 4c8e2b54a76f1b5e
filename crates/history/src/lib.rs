//! Whether what concurrent programs saw of a file system can be explained by one operation
//! happening after the other.
//!
//! A history says of each operation when it was called, when it returned and what it answered. It
//! is *linearizable* when each operation can be given one moment between its call and its return,
//! so that the answers are those of an object on which only one thing happens at a time. That is
//! what a coherent cluster promises to programs on all its mounts. The question is asked for each
//! object alone (a block of a file, a name, a log), which is enough: a history is linearizable when
//! the histories of its objects are (Herlihy and Wing).
//!
//! An operation that failed with an error that leaves its effect open (EIO, ETIMEDOUT) or never
//! returned may have happened at any moment after its call, or not at all.
//!
//! The search is that of Wing and Gong with Lowe's memory of what was tried ("Testing for
//! linearizability", 2017), as in Porcupine: [`search`]. A [`Model`] is the sequential object:
//! [`register`], [`name`], [`log`]. [`record`] is the form in which a load generator writes what it
//! saw, and [`judge`] does everything with a list of records.
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
//! A pure crate and a tool for tests: it does no I/O, and nothing of it is shipped.

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
