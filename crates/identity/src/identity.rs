//! The identity in a certificate.

use crate::error::{Error, Result};
use crate::role::Member;
use rustls::pki_types::CertificateDer;
use std::fmt;
use x509_parser::extensions::GeneralName;

/// First byte of the serial number of a certificate with an issue number, which is in the 8 bytes
/// that follow.
const NUMBERED_SERIAL: &str = "01";

/// The owner of a certificate.
///
/// It doesn't prove that the certificate is genuine: take a connection's [`Identity`] only from a
/// certificate that the verifiers of [`crate::tls`] have accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// UUID of the cluster.
    pub cluster: String,
    /// The owner's role, with its id.
    pub role: Member,
    /// When the certificate expires, Unix seconds.
    pub expires: i64,
    /// Serial number of the certificate, unique within the cluster: hexadecimal, for display.
    pub serial: String,
}

impl Identity {
    /// Reads the identity from a certificate.
    ///
    /// # Errors
    /// Any subject alternative names other than exactly one URI of weft's form.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Identity> {
        let (rest, x509) = x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| Error::certificate("it can't be parsed"))?;
        if !rest.is_empty() {
            return Err(Error::certificate("something follows it"));
        }
        let names = x509
            .subject_alternative_name()
            .map_err(|_| Error::certificate("its alternative names can't be parsed"))?
            .ok_or_else(|| Error::certificate("it names no member of a cluster"))?;
        let [GeneralName::URI(uri)] = names.value.general_names.as_slice() else {
            return Err(Error::certificate("it doesn't name one member of a cluster"));
        };
        let (cluster, role) = Member::from_uri(uri)
            .ok_or_else(|| Error::certificate(format!("{uri:?} is not a member of a cluster")))?;
        Ok(Identity {
            cluster: cluster.to_string(),
            role,
            expires: x509.validity().not_after.timestamp(),
            serial: x509.raw_serial_as_string().replace(':', ""),
        })
    }

    /// The issue number of a client's certificate: numbers grow with time. `None` for certificates
    /// of nodes, and for those issued before clients were recorded.
    pub fn issue_number(&self) -> Option<u64> {
        let number = self.serial.strip_prefix(NUMBERED_SERIAL).filter(|rest| rest.len() == 30)?;
        u64::from_str_radix(number.get(..16)?, 16).ok()
    }

    /// Fails for members of other clusters.
    pub fn require_cluster(&self, wanted: &str) -> Result<()> {
        if self.cluster == wanted {
            return Ok(());
        }
        Err(Error::OtherCluster { found: self.cluster.clone(), wanted: wanted.to_string() })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.role, f)
    }
}
