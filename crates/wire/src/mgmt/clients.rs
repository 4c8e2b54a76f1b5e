//! Join tokens, clients, and their sessions.

use serde::{Deserialize, Serialize};
use types::{NodeId, SessionId};

/// Properties of a new token.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewToken {
    /// For a cluster file that clients share, instead of a token for nodes.
    #[serde(default)]
    pub client: bool,
    /// Number of nodes that may join with it; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Validity in seconds; `None`: a day. Not for a cluster file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// A valid join token, for display.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenInfo {
    /// Its public id, hexadecimal digits. Not its secret.
    pub id: String,
    /// Roles of nodes that join with it.
    pub roles: Vec<String>,
    /// Number of nodes that may still join with it.
    pub uses_left: u32,
    /// Expiry, Unix seconds.
    pub ends_s: i64,
}

/// A client to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewClient {
    /// Its name: `client/<name>` in its certificate.
    pub name: String,
    /// Seconds after which it may not mount any more; `None`: its certificate is renewed
    /// indefinitely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Validity of each of its certificates, in seconds; `None`: a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validity_s: Option<u64>,
}

/// State of a client's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum ClientState {
    Valid,
    /// Within 30 days, or in the last third of its validity where that is shorter.
    ExpiresSoon,
    Expired,
    /// No service accepts it.
    Revoked,
}

/// A client, for display.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// State of its last certificate.
    pub state: ClientState,
    /// Expiry of that certificate, Unix seconds.
    pub ends_s: i64,
    /// End of its renewal, Unix seconds; `None`: it is renewed indefinitely.
    pub last_s: Option<i64>,
    /// When the client was added, Unix seconds.
    pub added_s: i64,
    /// Number of its sessions; `None` if metadata services don't answer.
    #[serde(default)]
    pub sessions: Option<usize>,
}

/// Result of a revocation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RevocationInfo {
    /// Evicted sessions.
    pub sessions: Vec<SessionId>,
    /// Nodes that may not know of the revocation yet: management got no heartbeat from them in
    /// time.
    pub unaware: Vec<NodeId>,
}

/// A session, for display.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its id.
    pub session: SessionId,
    /// Proved identity of its client, `client/<name>`; without proofs, the client's own name for
    /// itself.
    #[serde(default)]
    pub client: String,
    /// Machine and process of its client (`host:pid`), as the client claims.
    #[serde(default)]
    pub host: String,
    /// Address from which it registered; empty for a session of the service's own process.
    #[serde(default)]
    pub address: String,
    /// Seconds since its last request; `None` if unknown.
    #[serde(default)]
    pub idle_s: Option<u64>,
    /// Number of its leases; `None` if unknown.
    #[serde(default)]
    pub leases: Option<u64>,
    /// Number of files that it has open without a lease on them; `None` if unknown.
    #[serde(default)]
    pub in_use: Option<u64>,
}
