//! The TLS certificate of the HTTP interface, issued for the names by which programs reach it.
//!
//! It is separate from the node's cluster certificate, which names no host. Its key lives only in
//! memory. Management renews the certificate long before it expires.

use crate::output::os_error;
use identity::{Credentials, PendingKey};
use rustls::ServerConfig;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::{Node, Result};

/// File in a node's directory with the certificate of the cluster's authority, for programs that
/// call the interface.
const CA_FILE: &str = "api.ca.pem";

/// Age at which the certificate is renewed: a third of its validity.
const RENEWAL_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Backoff after management failed to issue a certificate.
const RETRY: Duration = Duration::from_secs(3600);

/// Has management sign a certificate request for these names. Returns the chain in PEM.
pub type Certify = Box<dyn Fn(&[u8]) -> Result<String> + Send + Sync>;

/// The certificate that the interface presents in handshakes.
pub struct Certificate {
    credentials: Credentials,
    certify: Certify,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    renew_ns: u64,
}

impl Certificate {
    /// Obtains the first certificate. Callers that present a certificate must be members of the
    /// cluster of `credentials`.
    pub fn new(credentials: Credentials, certify: Certify) -> Result<Certificate> {
        let config = make(&credentials, &certify)?;
        let current = Mutex::new(Current { config, renew_ns: after(RENEWAL_AGE) });
        Ok(Certificate { credentials, certify, current })
    }

    /// Returns the configuration for a new handshake, and renews the certificate if it is due.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if rt::monotonic_ns() > current.renew_ns {
            current.renew_ns = after(RETRY);
            match make(&self.credentials, &self.certify) {
                Ok(config) => *current = Current { config, renew_ns: after(RENEWAL_AGE) },
                Err(error) => tracing::warn!(
                    hint = &*error.hint,
                    "the certificate of the HTTP interface isn't renewed yet: {}",
                    error.message
                ),
            }
        }
        current.config.clone()
    }
}

fn after(time: Duration) -> u64 {
    rt::monotonic_ns() + time.as_nanos() as u64
}

fn make(credentials: &Credentials, certify: &Certify) -> Result<Arc<ServerConfig>> {
    let key = PendingKey::generate()?;
    let chain = certify(key.request())?;
    Ok(identity::tls::api_config(credentials, key, &chain)?)
}

/// Returns the names by which a node's interface is reached: those of the machine itself, those
/// that the cluster map has for the node, and those that its administrator added.
pub fn certificate_names(node: Option<&Node>, added: &[String]) -> Vec<String> {
    let mut names: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(String::from).into();
    if let Some(node) = node {
        let addresses = node.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
        names.extend(addresses.map(|address| address.ip().to_canonical().to_string()));
        // A node's name needn't be a valid host name.
        names.extend(Some(node.name.clone()).filter(|name| is_valid_host_name(name)));
    }
    names.extend(added.iter().cloned());
    names.into_iter().collect()
}

fn is_valid_host_name(name: &str) -> bool {
    name.parse::<IpAddr>().is_err() && rustls::pki_types::DnsName::try_from(name).is_ok()
}

/// Writes the certificate of the authority, which programs must trust, into the node's directory.
pub fn write_ca(dir: &Path, credentials: &Credentials) -> Result<()> {
    let path = dir.join(CA_FILE);
    let pem = credentials.authority_pem();
    match std::fs::read_to_string(&path) {
        Ok(known) if known == pem => return Ok(()),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(os_error(path.display(), &e)),
        _ => {}
    }
    crate::node_config::write_atomically(&path, &pem, 0o644)
}
