//! Who may become a member, which clients there are, and their sessions.

use serde::{Deserialize, Serialize};
use types::{NodeId, SessionId};

/// What a token is to be good for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewToken {
    /// A cluster file that clients share, not a token for nodes.
    #[serde(default)]
    pub client: bool,
    /// How many nodes may join with it; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// After how many seconds it ends; `None`: a day. Not for a cluster file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// A join token that is in force, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenInfo {
    /// Its public name, hexadecimal digits. Not its secret.
    pub id: String,
    /// What its bearers become.
    pub roles: Vec<String>,
    /// How many may still join with it.
    pub uses_left: u32,
    /// When it ends, Unix seconds.
    pub ends_s: i64,
}

/// A client that is to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewClient {
    /// Its name: `client/<name>` in its certificate.
    pub name: String,
    /// After how many seconds it may not mount any more; `None`: its certificate is renewed for
    /// ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// How long each of its certificates is valid, seconds; `None`: a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validity_s: Option<u64>,
}

/// How a client's certificate stands.
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

/// A client for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// How its last certificate stands.
    pub state: ClientState,
    /// When that one ends, Unix seconds.
    pub ends_s: i64,
    /// From then on it isn't renewed, Unix seconds; `None`: it is renewed for ever.
    pub last_s: Option<i64>,
    /// When the client was added, Unix seconds.
    pub added_s: i64,
    /// Its sessions; `None` where metadata services don't answer.
    #[serde(default)]
    pub sessions: Option<usize>,
}

/// What a revocation has come to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RevocationInfo {
    /// Sessions that were ended by force.
    pub sessions: Vec<SessionId>,
    /// Nodes that are not known to refuse the client yet: management hasn't heard of them in time.
    pub unaware: Vec<NodeId>,
}

/// A session for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its id.
    pub session: SessionId,
    /// What its client has proved to be, `client/<name>`; where nothing is proved, what it calls
    /// itself.
    #[serde(default)]
    pub client: String,
    /// What its client says its machine and process are (`host:pid`): nothing proves it.
    #[serde(default)]
    pub host: String,
    /// Where it registered from; empty for one of the service's own process.
    #[serde(default)]
    pub address: String,
    /// Seconds since it was last heard of; `None` where that isn't known.
    #[serde(default)]
    pub idle_s: Option<u64>,
    /// Leases that it holds; `None` where that isn't known.
    #[serde(default)]
    pub leases: Option<u64>,
    /// Files that it has open without a lease on them; `None` where that isn't known.
    #[serde(default)]
    pub in_use: Option<u64>,
}
