//! Certificate verifiers that check cluster and role in addition to webpki's checks of the chain.

use crate::authority::{CaCertificate, Fingerprint};
use crate::credentials::Credentials;
use crate::error::Result;
use crate::identity::Identity;
use crate::role::Member;
use crate::tls::{UnauthenticatedClients, matches_peer_name};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;

/// Accepts clients that are members of one cluster.
#[derive(Debug)]
pub struct MemberVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    cluster: String,
}

impl MemberVerifier {
    pub fn new(
        credentials: &Credentials,
        provider: &Arc<CryptoProvider>,
        unauthenticated_clients: UnauthenticatedClients,
    ) -> Result<MemberVerifier> {
        let roots = Arc::new(roots_of(credentials.authority())?);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let builder = match unauthenticated_clients {
            UnauthenticatedClients::Refused => builder,
            UnauthenticatedClients::MayJoin => builder.allow_unauthenticated(),
        };
        let chain = builder.build().map_err(|e| crate::Error::Crypto(e.to_string()))?;
        Ok(MemberVerifier { chain, cluster: credentials.identity().cluster.clone() })
    }
}

impl ClientCertVerifier for MemberVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        member_of(&self.cluster, end_entity)?;
        Ok(verified)
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Accepts servers that are nodes of a member's cluster.
#[derive(Debug)]
pub struct NodeVerifier {
    roots: RootCertStore,
    cluster: String,
    algorithms: WebPkiSupportedAlgorithms,
}

impl NodeVerifier {
    pub fn new(credentials: &Credentials, provider: &CryptoProvider) -> Result<NodeVerifier> {
        Ok(NodeVerifier {
            roots: roots_of(credentials.authority())?,
            cluster: credentials.identity().cluster.clone(),
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

/// Accepts servers that are nodes of a cluster of which only the authority's fingerprint is known.
#[derive(Debug)]
pub struct PinnedVerifier {
    authority: Fingerprint,
    cluster: String,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedVerifier {
    pub fn new(cluster: &str, authority: Fingerprint, provider: &CryptoProvider) -> PinnedVerifier {
        let algorithms = provider.signature_verification_algorithms;
        PinnedVerifier { authority, cluster: cluster.to_string(), algorithms }
    }

    /// Finds the authority's certificate among those that the peer presented: the one with the
    /// pinned fingerprint, which can't be forged.
    fn roots(&self, presented: &[CertificateDer<'_>]) -> Result<RootCertStore, Error> {
        let authority = presented
            .iter()
            .find(|certificate| Fingerprint::of(certificate) == self.authority)
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        Ok(roots)
    }
}

/// The common part of both node verifiers, once the roots are known.
fn verify_node(
    roots: &RootCertStore,
    cluster: &str,
    algorithms: &WebPkiSupportedAlgorithms,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let parsed = ParsedCertificate::try_from(end_entity)?;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms.all)?;
    let identity = member_of(cluster, end_entity)?;
    match identity.role {
        Member::Node(node) if matches_peer_name(name, node) => Ok(ServerCertVerified::assertion()),
        Member::Node(node) => {
            Err(refusal(UnacceptedPeer(format!("it is node {node}, not the expected one"))))
        }
        Member::Client(_) => Err(refusal(UnacceptedPeer(format!("it is {identity}, not a node")))),
    }
}

macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_node(&self.roots, &self.cluster, &self.algorithms, end_entity, intermediates, name, now)
    }

    verify_signatures!();
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = self.roots(intermediates)?;
        verify_node(&roots, &self.cluster, &self.algorithms, end_entity, intermediates, name, now)
    }

    verify_signatures!();
}

fn roots_of(authority: &CaCertificate) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone())?;
    Ok(roots)
}

/// The member of this cluster that a verified certificate names.
fn member_of(cluster: &str, certificate: &CertificateDer<'_>) -> Result<Identity, Error> {
    let identity = Identity::of(certificate).and_then(|identity| {
        identity.require_cluster(cluster)?;
        Ok(identity)
    });
    identity.map_err(|e| refusal(UnacceptedPeer(e.to_string())))
}

/// Why a genuine certificate is not accepted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UnacceptedPeer(String);

fn refusal(cause: UnacceptedPeer) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(cause))))
}
