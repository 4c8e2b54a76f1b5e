//! The cluster's certificate authority.

use crate::credentials::{Credentials, PendingKey};
use crate::error::{Error, Result};
use crate::role::{Member, MemberKind};
use crate::{
    API_VALIDITY_S, AUTHORITY_VALIDITY_S, CLIENT_VALIDITY_S, CLOCK_SKEW_S, MAX_API_NAMES, NODE_VALIDITY_S,
    RENEWAL_FRACTION, files,
};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use time::OffsetDateTime;

/// The authority's certificate in its directory.
const CERTIFICATE_FILE: &str = "ca.crt";

/// The authority's private key.
const KEY_FILE: &str = "ca.key";

/// Bytes of a certificate's random serial number: enough that no two collide, and within the limit
/// of 20 bytes of a DER integer.
const SERIAL_BYTES: usize = 16;

/// First byte of a serial number whose next 8 bytes are an issue number (`Identity::issue_number`);
/// random ones begin with a larger byte.
const NUMBERED_SERIAL: u8 = 1;

/// Validity period of a certificate, Unix seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Validity {
    pub from: i64,
    pub until: i64,
}

impl Validity {
    /// The default validity of a node that joins now.
    pub fn of_node(now: i64) -> Validity {
        Validity { from: now - CLOCK_SKEW_S, until: now + NODE_VALIDITY_S }
    }

    /// The default validity of a client that joins now.
    pub fn of_client(now: i64) -> Validity {
        Validity { from: now - CLOCK_SKEW_S, until: now + CLIENT_VALIDITY_S }
    }

    /// The validity of a given certificate.
    pub(crate) fn in_certificate(certificate: &CertificateDer<'_>) -> Result<Validity> {
        let (_, x509) = x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| Error::certificate("it can't be parsed"))?;
        let validity = x509.validity();
        Ok(Validity { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
    }

    /// When a certificate with this validity should be renewed: when one part in
    /// [`RENEWAL_FRACTION`] of it is left.
    pub fn renew_at(&self) -> i64 {
        let lifetime = (self.until - self.from - CLOCK_SKEW_S).max(0);
        self.until - lifetime / RENEWAL_FRACTION
    }

    /// The default validity of a member that joins now.
    pub fn default_for(role: &Member, now: i64) -> Validity {
        match role.kind() {
            MemberKind::Node => Validity::of_node(now),
            MemberKind::Client => Validity::of_client(now),
        }
    }
}

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        Fingerprint(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The public half of an authority, which every member trusts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaCertificate {
    der: CertificateDer<'static>,
}

impl CaCertificate {
    /// Wraps a certificate that is known to be the authority's.
    pub fn new(der: CertificateDer<'static>) -> CaCertificate {
        CaCertificate { der }
    }

    /// The certificate itself.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The certificate's validity period.
    ///
    /// # Errors
    /// A certificate that can't be parsed.
    pub fn validity(&self) -> Result<Validity> {
        Validity::in_certificate(&self.der)
    }

    /// The fingerprint that a join token pins.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.der)
    }
}

/// The cluster's certificate authority with its private key.
pub struct Authority {
    cluster: String,
    certificate: CaCertificate,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes the authority of a new cluster: a key and a self-signed certificate.
    ///
    /// # Errors
    /// A `cluster` that isn't hexadecimal digits with dashes, as a UUID is.
    pub fn create(cluster: &str, name: &str, now: i64) -> Result<Authority> {
        if cluster.is_empty() || !cluster.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(Error::certificate(format!("{cluster:?} is not the UUID of a cluster")));
        }
        let key = KeyPair::generate()?;
        let validity = Validity { from: now - CLOCK_SKEW_S, until: now + AUTHORITY_VALIDITY_S };
        let mut params = parameters(&format!("weft cluster {name}"), &authority_uri(cluster), validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.der().clone();
        Authority::assemble(cluster, certificate, key)
    }

    fn assemble(cluster: &str, der: CertificateDer<'static>, key: KeyPair) -> Result<Authority> {
        let issuer = Issuer::from_ca_cert_der(&der, key)?;
        Ok(Authority { cluster: cluster.to_string(), certificate: CaCertificate { der }, issuer })
    }

    /// UUID of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The authority's certificate, which members trust.
    pub fn certificate(&self) -> &CaCertificate {
        &self.certificate
    }

    /// Makes a key and certifies it: for members on this machine.
    pub fn issue(&self, role: &Member, validity: Validity) -> Result<Credentials> {
        let pending = PendingKey::generate()?;
        let chain = self.certify(pending.request(), role, validity)?;
        pending.certified(&chain)
    }

    /// The same for a client, with an issue number by which the certificate can be revoked.
    pub fn issue_to_client(&self, name: &str, validity: Validity, number: u64) -> Result<Credentials> {
        let pending = PendingKey::generate()?;
        let chain = self.certify_client(pending.request(), name, validity, number)?;
        pending.certified(&chain)
    }

    /// Certifies a key that the member has generated. `request` is [`PendingKey::request`]; only
    /// its key and the proof of possession are used, all other content is ignored. Returns the
    /// chain in PEM: the member's certificate, then the authority's.
    ///
    /// # Errors
    /// A request that is malformed or not signed by its own key; a bad client name.
    pub fn certify(&self, request: &[u8], role: &Member, validity: Validity) -> Result<String> {
        self.certify_member(request, role, validity, random_serial()?)
    }

    /// As [`Authority::certify`] for a client, with an issue number.
    pub fn certify_client(
        &self,
        request: &[u8],
        name: &str,
        validity: Validity,
        number: u64,
    ) -> Result<String> {
        let mut serial = random_serial()?;
        serial[0] = NUMBERED_SERIAL;
        serial[1..9].copy_from_slice(&number.to_be_bytes());
        self.certify_member(request, &Member::Client(name.to_string()), validity, serial)
    }

    fn certify_member(
        &self,
        request: &[u8],
        role: &Member,
        validity: Validity,
        serial: [u8; SERIAL_BYTES],
    ) -> Result<String> {
        role.check()?;
        let mut params = parameters(&role.to_string(), &role.uri(&self.cluster), validity)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let usages = match role.kind() {
            MemberKind::Node => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            MemberKind::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        self.certify_with(request, params, usages)
    }

    /// Certifies the key of an HTTP interface under names that HTTP clients use: DNS names and IP
    /// addresses. The certificate names no member, so it can't be used to connect to a service.
    /// `request` and the result are those of [`Authority::certify`].
    ///
    /// # Errors
    /// A bad request; no name, too many, or one that is neither a DNS name nor an address.
    pub fn certify_api(&self, request: &[u8], names: &[String], now: i64) -> Result<String> {
        if names.is_empty() || names.len() > MAX_API_NAMES {
            return Err(Error::certificate(format!("it can't have {} names", names.len())));
        }
        let names = names.iter().map(|name| server_name(name)).collect::<Result<Vec<SanType>>>()?;
        let validity = Validity { from: now - CLOCK_SKEW_S, until: now + API_VALIDITY_S };
        let mut params = parameters("weft management", "", validity)?;
        params.subject_alt_names = names;
        self.certify_with(request, params, vec![ExtendedKeyUsagePurpose::ServerAuth])
    }

    fn certify_with(
        &self,
        request: &[u8],
        mut params: CertificateParams,
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> Result<String> {
        let bad = |e: rcgen::Error| Error::BadRequest { cause: e.to_string() };
        let request = CertificateSigningRequestDer::from(request);
        let request = CertificateSigningRequestParams::from_der(&request).map_err(bad)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        let certificate = params.signed_by(&request.public_key, &self.issuer)?;
        Ok(format!("{}{}", certificate.pem(), pem_of(&self.certificate.der)))
    }

    /// Reads the authority from its directory.
    ///
    /// # Errors
    /// A key that other users may read, a key that doesn't match the certificate, files that are
    /// missing or damaged.
    pub fn load(dir: &Path) -> Result<Authority> {
        let (certificate_path, key_path) = (dir.join(CERTIFICATE_FILE), dir.join(KEY_FILE));
        let key = KeyPair::from_pem(&files::read_private(&key_path)?)
            .map_err(|e| Error::damaged(&key_path, e.to_string()))?;
        let damaged = |cause: &str| Error::damaged(&certificate_path, cause);
        let text = files::read_public(&certificate_path)?;
        let der = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|_| damaged("it is not a certificate in PEM form"))?;
        let (_, x509) = x509_parser::parse_x509_certificate(&der)
            .map_err(|_| damaged("its certificate can't be parsed"))?;
        if x509.public_key().subject_public_key.as_ref() != key.public_key_raw() {
            return Err(damaged(&format!("its key is not that in {}", key_path.display())));
        }
        let cluster = cluster_of(&x509).ok_or_else(|| damaged("it is not a cluster's authority"))?;
        Authority::assemble(&cluster, der, key)
    }

    /// Writes a new authority to its directory, creating the directory if necessary. Writes the key
    /// first, so that a certificate never exists without its key.
    ///
    /// # Errors
    /// The directory contains another authority, which isn't changed.
    pub fn store(&self, dir: &Path) -> Result<()> {
        files::make_directory(dir)?;
        let certificate = dir.join(CERTIFICATE_FILE);
        if certificate.exists() {
            return Err(Error::AuthorityExists { path: dir.to_path_buf() });
        }
        files::write_private(&dir.join(KEY_FILE), &self.issuer.key().serialize_pem())?;
        files::write_public(&certificate, &pem_of(&self.certificate.der))
    }
}

/// Parses a name for a certificate of an HTTP interface.
fn server_name(name: &str) -> Result<SanType> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    match rustls::pki_types::DnsName::try_from(name) {
        Ok(_) => Ok(SanType::DnsName(Ia5String::try_from(name)?)),
        Err(_) => Err(Error::certificate(format!("{name:?} is neither a DNS name nor an address"))),
    }
}

/// The URI in the authority's own certificate.
fn authority_uri(cluster: &str) -> String {
    format!("weft://{cluster}/authority")
}

fn cluster_of(x509: &x509_parser::certificate::X509Certificate<'_>) -> Option<String> {
    let names = x509.subject_alternative_name().ok()??;
    let [x509_parser::extensions::GeneralName::URI(uri)] = names.value.general_names.as_slice() else {
        return None;
    };
    Some(uri.strip_prefix("weft://")?.strip_suffix("/authority")?.to_string())
}

/// Parameters common to all certificates of a cluster.
fn parameters(name: &str, uri: &str, validity: Validity) -> Result<CertificateParams> {
    let time = |seconds| {
        OffsetDateTime::from_unix_timestamp(seconds)
            .map_err(|_| Error::Crypto(format!("a certificate can't hold the time {seconds} s")))
    };
    let mut params = CertificateParams::default();
    params.not_before = time(validity.from)?;
    params.not_after = time(validity.until)?;
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(uri)?)];
    Ok(params)
}

/// A positive number without leading zeros, and without [`NUMBERED_SERIAL`].
fn random_serial() -> Result<[u8; SERIAL_BYTES]> {
    let mut serial = [0; SERIAL_BYTES];
    SystemRandom::new().fill(&mut serial)?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

pub(crate) fn pem_of(der: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| *byte as char));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}
