//! A network of nodes on this machine: one network namespace for each, all on one bridge that has a
//! namespace of its own.
//!
//! Only the network is apart. Processes are put into it by `nsenter --net` and keep the file
//! systems of everybody, so that a mount that a node makes is there for the test to use (`ip netns
//! exec` would give each a mount namespace of its own). All interfaces live in namespaces of the
//! run, so nothing of the machine's own network is touched, and removing the namespaces removes
//! everything.

mod cut;
mod leftovers;
mod namespace;
mod network;
mod rate;
mod service;
mod tests;

pub(super) use namespace::remove;
pub use network::{Network, Node, Plan, Role};
pub use rate::Carried;
pub use service::{Recipe, Service};
pub(super) use tests::TESTS;
