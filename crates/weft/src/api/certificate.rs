//! The certificate of the interface, under names by which programs reach it.
//!
//! It is the interface's own: the certificate by which members of the cluster know a node names no
//! host. Its key lives in memory, and management certifies it anew long before it ends.

use crate::output::os_error;
use identity::{Credentials, PendingKey};
use rustls::ServerConfig;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::{Node, Result};

/// The certificate of the cluster's authority, in a node's directory, for programs that ask.
const CA_FILE: &str = "api.ca.pem";

/// Time after which another certificate is asked for: a third of its validity.
const RENEW_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Rest before it is asked for again when management hasn't given one.
const RETRY: Duration = Duration::from_secs(3600);

/// Has a request for a certificate signed under these names: the chain in PEM.
pub type Certify = Box<dyn Fn(&[u8]) -> Result<String> + Send + Sync>;

/// What the interface presents in handshakes.
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
    /// The first one; callers that bring a certificate are members of the cluster of `credentials`.
    pub fn new(credentials: Credentials, certify: Certify) -> Result<Certificate> {
        let config = make(&credentials, &certify)?;
        let current = Mutex::new(Current { config, renew_ns: after(RENEW_AFTER) });
        Ok(Certificate { credentials, certify, current })
    }

    /// The configuration of a handshake that begins now.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if rt::monotonic_ns() > current.renew_ns {
            current.renew_ns = after(RETRY);
            match make(&self.credentials, &self.certify) {
                Ok(config) => *current = Current { config, renew_ns: after(RENEW_AFTER) },
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

/// Names by which a node's interface is reached: those of the machine itself, those that the
/// cluster map knows of the node, and those that its administrator has added.
pub fn names(node: Option<&Node>, added: &[String]) -> Vec<String> {
    let mut names: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(String::from).into();
    if let Some(node) = node {
        let addresses = node.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
        names.extend(addresses.map(|address| address.ip().to_canonical().to_string()));
        // A node may have a name that is none of a host.
        names.extend(Some(node.name.clone()).filter(|name| is_host(name)));
    }
    names.extend(added.iter().cloned());
    names.into_iter().collect()
}

fn is_host(name: &str) -> bool {
    name.parse::<IpAddr>().is_err() && rustls::pki_types::DnsName::try_from(name).is_ok()
}

/// Writes what a program has to trust into the node's directory.
pub fn write_ca(dir: &Path, credentials: &Credentials) -> Result<()> {
    let path = dir.join(CA_FILE);
    let pem = credentials.authority_pem();
    match std::fs::read_to_string(&path) {
        Ok(known) if known == pem => return Ok(()),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(os_error(path.display(), &e)),
        _ => {}
    }
    crate::node_config::write_whole(&path, &pem, 0o644)
}
