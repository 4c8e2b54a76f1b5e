//! Clusters that nobody has: groups, placement, striping and the choice of successors as they are
//! in a real one, on drives, links and cores that are numbers.
//!
//! A discrete-event model: a request is a way over stations (a client's link, a server's link, its
//! cores, a target), each of which serves one after the other in the order of arrival. From link to
//! link bytes go on while they come, in pieces, so that connections share a link. Programs keep one
//! request each under way. What comes out is throughput against clients, how even the load of
//! targets is, how long a rebuild takes and what it costs. Formulas (`layout::plan`) say what a
//! resource would allow; this says what queues and uneven placement leave of it.
//!
//! Not modelled: metadata, latencies of messages, caches, anything random about drives. Pure, and
//! the same for equal arguments.

mod engine;
mod farm;
mod load;
mod rebuild;

pub use farm::{Farm, Hardware, Refusal, Resource};
pub use load::{Load, Outcome, run};
pub use rebuild::{Rebuild, Rebuilt, rebuild};
