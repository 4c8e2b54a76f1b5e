//! rustls configurations: TLS 1.3 only, both ends certified by the cluster's authority.
//!
//! Peers are identified by their certificates, not by DNS names or addresses. Sessions are not
//! resumed: connections are few and long-lived, and every handshake validates the certificates
//! again.

use crate::Protection;
use crate::authority::Fingerprint;
use crate::credentials::{Credentials, PendingKey};
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::token::JoinToken;
use crate::verifier::{MemberVerifier, NodeVerifier, PinnedVerifier};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;
use types::NodeId;

/// How a server handles connections without a client certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnauthenticatedClients {
    /// The handshake fails.
    Refused,
    /// Accepted without an [`Identity`]: the server may only answer a request to join. For
    /// management.
    MayJoin,
}

/// The configuration of a server. [`peer_identity`] returns the client's identity.
pub fn server_config(
    credentials: &Credentials,
    protection: Protection,
    unauthenticated_clients: UnauthenticatedClients,
) -> Result<Arc<ServerConfig>> {
    let provider = provider();
    let verifier = MemberVerifier::new(credentials, &provider, unauthenticated_clients)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(credentials.chain(), credentials.key()?)?;
    // In order of the server's preference. A server that allows plaintext still encrypts for a
    // client that requires it.
    config.alpn_protocols = protection.protocols();
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// The configuration of an HTTP interface, with a certificate whose names HTTP clients know
/// ([`crate::Authority::certify_api`]). A client that presents a certificate must be a member of
/// the cluster of `credentials`; one without authenticates in another way.
pub fn api_config(credentials: &Credentials, key: PendingKey, chain_pem: &str) -> Result<Arc<ServerConfig>> {
    let provider = provider();
    let verifier = MemberVerifier::new(credentials, &provider, UnauthenticatedClients::MayJoin)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| Error::certificate("it is not in PEM form"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key.into_der()?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// The configuration of a member: the peer must be a node of the same cluster, and the one that
/// [`peer_name`] names.
pub fn client_config(credentials: &Credentials, protection: Protection) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let verifier = NodeVerifier::new(credentials, &provider)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(credentials.chain(), credentials.key()?)?;
    Ok(finish_config(config, protection))
}

/// The configuration of a machine that has only a join token: the peer must be a node of the
/// token's cluster, certified by the authority with the token's fingerprint. Always encrypted,
/// since it carries the token's secret.
pub fn join_config(token: &JoinToken) -> Result<Arc<ClientConfig>> {
    pinned_config(&token.cluster, token.authority)
}

fn pinned_config(cluster: &str, authority: Fingerprint) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let verifier = PinnedVerifier::new(cluster, authority, &provider);
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(finish_config(config, Protection::Encrypted))
}

fn finish_config(mut config: ClientConfig, protection: Protection) -> Arc<ClientConfig> {
    config.alpn_protocols = protection.protocols();
    config.resumption = Resumption::disabled();
    // The name identifies the intended node, and is not disclosed on the network.
    config.enable_sni = false;
    Arc::new(config)
}

/// The server name for a client's handshake: the peer must be this node, or any node of the
/// cluster.
pub fn peer_name(node: Option<NodeId>) -> ServerName<'static> {
    let name = match node {
        Some(node) => format!("node-{node}.weft.internal"),
        None => ANY_NODE.to_string(),
    };
    ServerName::try_from(name).expect("it is a DNS name")
}

const ANY_NODE: &str = "node.weft.internal";

/// Whether a node matches the name by [`peer_name`].
pub(crate) fn matches_peer_name(name: &ServerName<'_>, node: NodeId) -> bool {
    *name == peer_name(None) || *name == peer_name(Some(node))
}

/// Identity of the peer of a connection after the handshake; `None` for one without a certificate.
/// `certificates` is the peer's chain as rustls reports it.
pub fn peer_identity(certificates: Option<&[CertificateDer<'_>]>) -> Result<Option<Identity>> {
    certificates.and_then(<[_]>::first).map(Identity::of).transpose()
}

/// *ring*, with AES-128-GCM first: it is the fastest on processors with AES instructions, and its
/// security is that of P-256 keys.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(provider)
}
