//! Who may become a member, as management asks it of what has the cluster's authority.

use identity::{Identity, Role};
use types::{NodeId, Result, RevokedClient};
use wire::mgmt::{ClientInfo, Join, NewClient, NewToken, TokenInfo};

/// Another certificate of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// PEM: the certificate, then the authority's.
    pub chain: String,
    /// When it ends, Unix seconds.
    pub ends_s: i64,
}

/// Who may become a member. What isn't implemented is refused: there is no authority.
pub trait Gate: Send + Sync {
    /// Refuses a secret that no token has.
    fn check(&self, join: &Join, now_s: i64) -> Result<()>;
    /// Uses the token up, and certifies the node: PEM, or nothing where connections are plain.
    fn admit(&self, join: &Join, node: NodeId, now_s: i64) -> Result<String>;
    /// The keys of capabilities as they are at this time, as text; it changes them when it is time.
    fn capability_keys(&self, now_s: i64) -> Result<String>;
    /// A new token, or a cluster file that clients share.
    fn token(&self, wanted: &NewToken, now_s: i64) -> Result<String>;

    /// Certifies a key for the HTTP interface of a node, under these names: PEM.
    fn certify_api(&self, _csr: &str, _names: &[String], _now_s: i64) -> Result<String> {
        Err(crate::refusal::no_authority())
    }

    /// Tokens that are in force.
    fn tokens(&self, _now_s: i64) -> Result<Vec<TokenInfo>> {
        Err(crate::refusal::no_authority())
    }

    /// Forgets the token with this id.
    fn revoke_token(&self, _id: &str) -> Result<()> {
        Err(crate::refusal::no_authority())
    }

    /// A cluster file for a new client of its own.
    fn add_client(&self, _wanted: &NewClient, _now_s: i64) -> Result<String> {
        Err(crate::refusal::no_authority())
    }

    /// All clients on record, by name, without their sessions.
    fn clients(&self, _now_s: i64) -> Result<Vec<ClientInfo>> {
        Err(crate::refusal::no_authority())
    }

    /// Notes durably that a client's certificates are not accepted any more.
    fn revoke_client(&self, _name: &str, _now_s: i64) -> Result<()> {
        Err(crate::refusal::no_authority())
    }

    /// What services have to refuse, by name.
    fn revoked(&self, _now_s: i64) -> Vec<RevokedClient> {
        Vec::new()
    }

    /// Certifies a member's key in place of the one that it has. `present`: what it shows, where it
    /// comes over a connection.
    fn renew(&self, _member: &Role, _present: Option<&Identity>, _csr: &str, _now_s: i64) -> Result<Renewed> {
        Err(crate::refusal::no_authority())
    }

    /// When the authority's own certificate ends, Unix seconds.
    fn authority_ends_s(&self) -> Option<i64> {
        None
    }

    /// Whether clients prove their names.
    fn proves_names(&self) -> bool {
        false
    }
}
