//! Feeds arbitrary bytes to the parsers of capabilities, tokens, certificates and certificate
//! requests: for the fuzz targets and their short form in `tests/`.
//!
//! Each function panics when accepted input isn't the same after it was written and read again.

use crate::{
    Authority, Capability, CapabilityKeys, ClientRecords, Credentials, Identity, JoinToken, Member,
    TokenRecords,
};
use crate::{Validity, token};
use rustls::pki_types::CertificateDer;
use std::sync::LazyLock;

/// The cluster of the authority below.
const CLUSTER: &str = "01234567-89ab-4def-8123-456789abcdef";

/// A time at which everything below is valid.
const NOW: i64 = 1_800_000_000;

/// An authority that exists only in this process.
static AUTHORITY: LazyLock<Authority> =
    LazyLock::new(|| Authority::create(CLUSTER, "fuzz", NOW).expect("a key can be made"));

/// Keys of the same kind.
static KEYS: LazyLock<CapabilityKeys> =
    LazyLock::new(|| CapabilityKeys::create().expect("a key can be made"));

/// A capability as a client sends it. A capability that wasn't signed is never accepted.
pub fn capability(bytes: &[u8]) {
    let Ok(capability) = Capability::from_bytes(bytes) else { return };
    assert_eq!(capability.as_bytes().as_slice(), bytes);
    drop(format!("{capability:?}"));
    assert!(KEYS.verify(&capability, NOW as u64).is_err());
    // The same with a valid signature.
    let Ok(grant) = capability.claimed_grant() else { return };
    let signed = KEYS.sign(&grant);
    assert_eq!(signed.claimed_grant(), Ok(grant));
    assert_eq!(KEYS.verify(&signed, 0).is_ok(), grant.expires > 0);
}

/// The text of a join token, and the message in it.
pub fn token(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        read_token(text);
    }
    read_token(&token::text_of(bytes));
}

fn read_token(text: &str) {
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.to_string().parse().ok(), Some(token));
    }
}

/// A peer's certificate (DER), as after its chain was verified.
pub fn certificate(bytes: &[u8]) {
    let Ok(identity) = Identity::of(&CertificateDer::from(bytes)) else { return };
    let uri = identity.role.uri(&identity.cluster);
    assert_eq!(Member::from_uri(&uri), Some((identity.cluster.as_str(), identity.role)));
}

/// A request for a certificate (PKCS #10, DER).
pub fn request(bytes: &[u8]) {
    let role = Member::Client("fuzz".into());
    let Ok(chain) = AUTHORITY.certify(bytes, &role, Validity::of_client(NOW)) else { return };
    let certificate = chain.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap_or_default();
    let der = rustls::pki_types::pem::PemObject::from_pem_slice(certificate.as_bytes());
    let der: CertificateDer<'_> = der.expect("what was issued is PEM");
    assert_eq!(Identity::of(&der).map(|identity| identity.role).ok(), Some(role));
}

/// The texts of key and certificates, of capability keys and of records of tokens and clients.
pub fn files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(credentials) = Credentials::from_text(text) {
        let again = Credentials::from_text(&credentials.to_text()).map(|again| again.identity().clone());
        assert_eq!(again.ok().as_ref(), Some(credentials.identity()));
    }
    if let Ok(keys) = CapabilityKeys::parse(text) {
        let again = CapabilityKeys::parse(&keys.render()).map(|again| again.render());
        assert_eq!(again, Ok(keys.render()));
    }
    if let Ok(records) = ClientRecords::parse(text) {
        assert_eq!(ClientRecords::parse(&records.render()), Ok(records));
    }
    if let Ok(records) = TokenRecords::parse(text) {
        assert_eq!(TokenRecords::parse(&records.render()), Ok(records));
    }
}
