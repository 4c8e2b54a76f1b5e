//! Interface of management to the cluster's certificate authority: joins, tokens, clients and
//! certificates.

use identity::{Identity, Member};
use types::{NodeId, Result, RevokedClient};
use wire::mgmt::{ClientInfo, Join, NewClient, NewToken, TokenInfo};

/// A renewed certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenewedCertificate {
    /// PEM: the certificate, then the authority's.
    pub chain: String,
    /// Its expiry, Unix seconds.
    pub ends_s: i64,
}

/// The authority over membership. The default implementations refuse, for a cluster without an
/// authority.
pub trait MembershipAuthority: Send + Sync {
    /// Refuses a secret that belongs to no token.
    fn check(&self, join: &Join, now_s: i64) -> Result<()>;
    /// Uses up the token, and certifies the node: PEM, or empty where connections are unencrypted.
    fn admit(&self, join: &Join, node: NodeId, now_s: i64) -> Result<String>;
    /// The current capability keys as text; rotates them when due.
    fn capability_keys(&self, now_s: i64) -> Result<String>;
    /// Creates a join token, or a cluster file that clients share.
    fn token(&self, wanted: &NewToken, now_s: i64) -> Result<String>;

    /// Certifies a key for the HTTP interface of a node, with these names: PEM.
    fn certify_api(&self, _csr: &str, _names: &[String], _now_s: i64) -> Result<String> {
        Err(crate::refusal::no_authority())
    }

    /// Valid tokens.
    fn tokens(&self, _now_s: i64) -> Result<Vec<TokenInfo>> {
        Err(crate::refusal::no_authority())
    }

    /// Revokes the token with this id.
    fn revoke_token(&self, _id: &str) -> Result<()> {
        Err(crate::refusal::no_authority())
    }

    /// Creates a cluster file for a new client of its own.
    fn add_client(&self, _wanted: &NewClient, _now_s: i64) -> Result<String> {
        Err(crate::refusal::no_authority())
    }

    /// All recorded clients by name, without their sessions.
    fn clients(&self, _now_s: i64) -> Result<Vec<ClientInfo>> {
        Err(crate::refusal::no_authority())
    }

    /// Durably records that a client's certificates are revoked.
    fn revoke_client(&self, _name: &str, _now_s: i64) -> Result<()> {
        Err(crate::refusal::no_authority())
    }

    /// Revoked clients by name, which services must refuse.
    fn revoked(&self, _now_s: i64) -> Vec<RevokedClient> {
        Vec::new()
    }

    /// Certifies a new key of a member. `present`: the certificate that it shows over its
    /// connection.
    fn renew(
        &self,
        _member: &Member,
        _present: Option<&Identity>,
        _csr: &str,
        _now_s: i64,
    ) -> Result<RenewedCertificate> {
        Err(crate::refusal::no_authority())
    }

    /// Expiry of the authority's own certificate, Unix seconds.
    fn authority_ends_s(&self) -> Option<i64> {
        None
    }

    /// Whether clients prove their names.
    fn proves_names(&self) -> bool {
        false
    }
}
