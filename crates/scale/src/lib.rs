//! Simulation of large clusters: groups, placement, striping and the choice of replacement targets
//! as in a real cluster, on modelled drives, links and cores.
//!
//! A discrete-event model: a request follows a path over stations (a client's link, a server's
//! link, its cores, a target), each of which serves in the order of arrival. Between links, bytes
//! are forwarded in pieces while they arrive, so connections share a link. Each application has one
//! request in flight. The results are throughput against clients, the balance of load over targets,
//! and the duration and cost of a rebuild. Formulas (`layout::plan`) give what a resource allows;
//! this model shows what queues and uneven placement leave of it.
//!
//! Not modelled: metadata, message latencies, caches, random behaviour of drives. Pure, and
//! deterministic for equal arguments.

mod cluster;
mod engine;
mod load;
mod rebuild;

pub use cluster::{Hardware, Resource, SimulatedCluster, SimulationError};
pub use load::{Load, LoadResult, run};
pub use rebuild::{Rebuild, RebuildResult, rebuild};
