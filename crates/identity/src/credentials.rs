//! The certificate and key of one member.

use crate::authority::{CaCertificate, Validity, pem_of};
use crate::error::{Error, Result};
use crate::files;
use crate::identity::Identity;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::path::Path;

/// The member's private key, its certificate and its authority's: one file, so that they are
/// replaced atomically.
const FILE: &str = "identity.pem";

/// Last line of the key in that file.
const KEY_END: &str = "-----END PRIVATE KEY-----";

/// A certificate with its key and the certificate of the authority that issued it.
#[derive(Clone)]
pub struct Credentials {
    certificate: CertificateDer<'static>,
    authority: CaCertificate,
    identity: Identity,
    validity: Validity,
    chain_pem: String,
    key_pem: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Makes credentials from PEM: the chain is the member's certificate followed by the
    /// authority's.
    ///
    /// # Errors
    /// Other chains, a key that doesn't match the certificate, a certificate that names no member.
    pub fn from_pem(chain_pem: &str, key_pem: &str) -> Result<Credentials> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| Error::certificate("it is not in PEM form"))?;
        let [certificate, authority] = <[CertificateDer<'static>; 2]>::try_from(chain).map_err(|chain| {
            Error::certificate(format!("the chain has {} certificates, not 2", chain.len()))
        })?;
        let key = parse_key(key_pem)?;
        let signer =
            any_supported_type(&key).map_err(|_| Error::certificate("its key is of an unknown type"))?;
        CertifiedKey::new(vec![certificate.clone()], signer)
            .keys_match()
            .map_err(|_| Error::certificate("its key doesn't match"))?;
        let (identity, validity) = (Identity::of(&certificate)?, Validity::in_certificate(&certificate)?);
        Ok(Credentials {
            certificate,
            authority: CaCertificate::new(authority),
            identity,
            validity,
            chain_pem: chain_pem.to_string(),
            key_pem: key_pem.to_string(),
        })
    }

    /// The member that the certificate names.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Validity period of the member's certificate.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// The member's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The authority that this member trusts.
    pub fn authority(&self) -> &CaCertificate {
        &self.authority
    }

    /// The authority's certificate in PEM, for HTTP clients to trust.
    pub fn authority_pem(&self) -> String {
        pem_of(self.authority.der())
    }

    /// Both certificates in PEM.
    pub fn chain_pem(&self) -> &str {
        &self.chain_pem
    }

    /// The chain presented in a handshake. It includes the authority's certificate, so that a
    /// machine that only knows its fingerprint, from a join token, can verify it.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone(), self.authority.der().clone()]
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>> {
        parse_key(&self.key_pem)
    }

    /// Reads credentials from a directory.
    ///
    /// # Errors
    /// A file that other users may read, that is missing or damaged.
    pub fn load(dir: &Path) -> Result<Credentials> {
        let path = dir.join(FILE);
        let text = files::read_private(&path)?;
        Credentials::from_text(&text).map_err(|e| Error::damaged(&path, e.to_string()))
    }

    /// Writes the credentials to a directory, creating it if necessary.
    pub fn store(&self, dir: &Path) -> Result<()> {
        files::make_directory(dir)?;
        files::write_private(&dir.join(FILE), &self.to_text())
    }

    /// Parses the text of [`Credentials::to_text`].
    pub fn from_text(text: &str) -> Result<Credentials> {
        let (key, chain) = text.split_once(KEY_END).unwrap_or((text, ""));
        Credentials::from_pem(chain.trim_start(), &format!("{key}{KEY_END}\n"))
    }

    /// Key and chain in PEM, for a file that only its owner may read.
    pub fn to_text(&self) -> String {
        format!("{}{}", self.key_pem, self.chain_pem)
    }
}

fn parse_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| Error::certificate("its key is not in PEM form"))
}

/// A key without its certificate yet. It stays on the machine that made it.
pub struct PendingKey {
    key: KeyPair,
    request: Vec<u8>,
}

impl PendingKey {
    /// Makes a key (ECDSA P-256).
    pub fn generate() -> Result<PendingKey> {
        let key = KeyPair::generate()?;
        let request = CertificateParams::default().serialize_request(&key)?.der().to_vec();
        Ok(PendingKey { key, request })
    }

    /// The request for the authority: the public key, signed by the private one (PKCS #10, DER).
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The key alone, for a certificate that names no member.
    pub(crate) fn into_der(self) -> Result<PrivateKeyDer<'static>> {
        parse_key(&self.key.serialize_pem())
    }

    /// Joins the key with the chain that the authority returned.
    pub fn certified(self, chain_pem: &str) -> Result<Credentials> {
        Credentials::from_pem(chain_pem, &self.key.serialize_pem())
    }
}
