//! The client side: a peer, its connections, and their calls.

mod calls;
mod connection;
mod core_index;
mod core_link;
mod dial;
mod lookup;
mod peer;
mod reachability;
mod remote;
mod status;

pub use dial::ProbeFailure;
pub use lookup::Lookup;
pub use peer::{ClientIdentity, Peer, PeerOptions, SameHost};
pub(crate) use remote::RemoteService;
pub use status::{AddressFailure, LinkStatus, PeerStatus};
