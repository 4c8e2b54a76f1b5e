//! Prediction of a configuration before it is bought: capacity, rates, bottlenecks, rebuild time,
//! probability of data loss.
//!
//! A [`Description`] of servers, drives, links, clients and a pool is turned into a [`Plan`].
//! Everything is a formula of a few lines, each documented with its source in its place:
//!
//! - `capacity`: raw and usable bytes, metadata, spare;
//! - `rates`: for each kind of load the rate that each resource alone would allow; the smallest is
//!   the limit;
//! - `rebuild`: time to rebuild a lost target's content;
//! - `reliability`: the Markov chain from that and the failure rate of drives to the probability of
//!   data loss;
//! - `provision`: file systems whose throughput is sold by the TiB;
//! - `search`: the smallest configuration that meets given targets.
//!
//! The numbers of [`Model`] describe a system's efficiency on its hardware. Published
//! characterisations of four systems validate the formulas (`tests/published_results.rs`).
//!
//! ```
//! use layout::plan::{Clients, Description, Pool, Server, plan};
//! let servers = vec![Server { count: 4, drives: 8, drive: "nvme-gen4-7.68tb".into(), ..Server::of("100gbe") }];
//! let description = Description { pool: Pool::of("mirror:2".parse().unwrap()), server: servers, ..Description::default() };
//! let plan = plan(&description).unwrap();
//! assert_eq!(plan.targets, 32);
//! assert_eq!(plan.read.binds.to_string(), "server links");
//! ```

mod capacity;
mod description;
mod presets;
mod provision;
mod rates;
mod rebuild;
mod reliability;
mod report;
mod scheme;
mod search;
mod site;

pub use capacity::Capacity;
pub use description::{Clients, Description, Model, Pool, Raid, Server};
pub use presets::{DRIVES, Drive, LINKS, Link};
pub use provision::{DEPLOYMENTS, ExpectedPerformance, PerTib, Provision};
pub use rates::{Limit, PlannedRate, Resource};
pub use rebuild::{Rebuild, RebuildPlace};
pub use reliability::{LossModel, solve_chain};
pub use report::{Plan, plan};
pub use scheme::PlannedScheme;
pub use search::{MAX_SERVERS, Requirement, SearchResult, search};
pub use site::{ServerParts, server_parts};

use types::{Errno, Error};

/// An `EINVAL` error that names object and cause, with the remedy.
pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Errno::EINVAL, message.into()).hint(hint.into())
}
