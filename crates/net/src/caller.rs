//! Who sends a request.

use crate::Transport;
use identity::{Identity, Role};
use rt::net::Address;
use wire::authorization::Principal;

/// The other end of a connection, as the service sees it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What to call it in messages: what it has proved to be, or what it calls itself.
    pub name: String,
    /// What it says its machine and process are: for people, nothing proves it. Short, without
    /// control characters.
    pub host: String,
    /// What it has proved. Whoever answers requests goes by this, not by the name.
    pub proof: Proof,
    /// Fingerprint of the role that it has proved; 0 for none. Compared with every request.
    pub holder: u64,
    /// Where it connects from.
    pub address: Address,
    /// How the connection is carried.
    pub transport: Transport,
    /// Random number of its process.
    pub client: u64,
    /// Which of its cores it is.
    pub core: u32,
    /// The cluster that it belongs to; empty if it doesn't know yet (it wants to join).
    pub cluster: String,
}

/// What the other end of a connection has proved of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proof {
    /// Nothing was asked for: this server trusts whoever reaches it
    /// ([`Security::Plain`](crate::Security)).
    NotAsked,
    /// Nothing: it has no certificate. It may ask management to be let in, and nothing else.
    Stranger,
    /// It is this member of the cluster.
    Member(Identity),
}

impl Proof {
    /// The role that it has proved.
    pub fn role(&self) -> Option<&Role> {
        match self {
            Proof::Member(identity) => Some(&identity.role),
            Proof::NotAsked | Proof::Stranger => None,
        }
    }

    /// The same for the table of who may ask for what.
    pub fn principal(&self) -> Principal {
        match self {
            Proof::NotAsked => Principal::Unproved,
            Proof::Stranger => Principal::Stranger,
            Proof::Member(identity) => match identity.role {
                Role::Node(node) => Principal::Node(node),
                Role::Client(_) => Principal::Client,
            },
        }
    }

    /// Whether rules for networks leave it alone.
    pub fn is_trusted_as_node(&self) -> bool {
        match self {
            Proof::NotAsked => true,
            Proof::Stranger => false,
            Proof::Member(identity) => matches!(identity.role, Role::Node(_)),
        }
    }
}
