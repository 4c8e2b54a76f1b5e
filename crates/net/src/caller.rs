//! The sender of a request.

use crate::Transport;
use identity::{Identity, Member};
use rt::net::Address;
use wire::authorization::Principal;

/// The peer at the other end of a connection, as the service sees it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Name for messages: the role that the peer has proved, or the name that it claims.
    pub name: String,
    /// The peer's machine and process as it claims them, unproved: for display only. Short, without
    /// control characters.
    pub host: String,
    /// What the peer has proved. Services authorize by this, never by the name.
    pub proof: Proof,
    /// Fingerprint of the proved role; 0 for none. Compared with every request.
    pub holder: u64,
    /// Address that the peer connects from.
    pub address: Address,
    /// How the connection is transported.
    pub transport: Transport,
    /// Random number of the peer's process.
    pub client: u64,
    /// Number of the peer's core that this connection serves.
    pub core: u32,
    /// The cluster that the peer belongs to; empty if it doesn't know one yet (it wants to join).
    pub cluster: String,
}

/// What the other end of a connection has proved about its identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proof {
    /// Nothing was required: this server trusts every peer that reaches it
    /// ([`Security::Plain`](crate::Security)).
    NotRequired,
    /// Nothing: the peer has no certificate. It may only ask management to join the cluster.
    Unauthenticated,
    /// The peer has proved that it is this member of the cluster.
    Member(Identity),
}

impl Proof {
    /// The role that the peer has proved.
    pub fn role(&self) -> Option<&Member> {
        match self {
            Proof::Member(identity) => Some(&identity.role),
            Proof::NotRequired | Proof::Unauthenticated => None,
        }
    }

    /// The same as a principal of the authorization table.
    pub fn principal(&self) -> Principal {
        match self {
            Proof::NotRequired => Principal::Unauthenticated,
            Proof::Unauthenticated => Principal::NoCertificate,
            Proof::Member(identity) => match identity.role {
                Member::Node(node) => Principal::Node(node),
                Member::Client(_) => Principal::Client,
            },
        }
    }

    /// Whether the peer is trusted like a node, so that network rules don't apply to it.
    pub fn is_trusted_as_node(&self) -> bool {
        match self {
            Proof::NotRequired => true,
            Proof::Unauthenticated => false,
            Proof::Member(identity) => matches!(identity.role, Member::Node(_)),
        }
    }
}
