//! A network of nodes on this machine: one network namespace per node, all connected to one bridge,
//! which has its own namespace.
//!
//! Only the network is isolated. `nsenter --net` starts processes in it, and they share the mount
//! namespace, so that the test can use a node's mount (`ip netns exec` would give each its own
//! mount namespace). All interfaces are in namespaces of the run, so the machine's own network
//! isn't touched, and removing the namespaces removes everything.

mod cut;
mod leftovers;
mod namespace;
mod network;
mod rate;
mod service;
mod tests;

pub(super) use namespace::remove;
pub use network::{Network, Node, Plan, Role};
pub use rate::Traffic;
pub use service::{Recipe, Service};
pub(super) use tests::TESTS;
