//! Who may become a member: tokens and certificates, on the management node.

use super::key_store::KeyStore;
use crate::node_config::{ClusterFile, NodeConfig, Protection};
use identity::{
    Authority, Credentials, JoinToken, MemberKind, Role, TOKEN_VALIDITY_S, TokenOffer, TokenRecords, Validity,
};
use mgmt::{StatePaths, Superblock};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use types::{Errno, Error, NodeId, Result};
use wire::mgmt::Join;

/// Machines that may join with one token: an administrator installs many at a time.
const USES: u32 = 1024;

/// Name in the certificate of clients that share a cluster file.
const CLIENT_NAME: &str = "clients";

/// Issues tokens and certificates.
pub struct Gate {
    authority: Authority,
    records: Mutex<TokenRecords>,
    keys: Mutex<KeyStore>,
    path: PathBuf,
    superblock: Superblock,
    addresses: Vec<String>,
    protection: Protection,
}

impl Gate {
    /// Reads authority and tokens of the management node.
    pub fn load(paths: &StatePaths, superblock: &Superblock, config: &NodeConfig) -> Result<Gate> {
        let path = paths.tokens();
        Ok(Gate {
            authority: Authority::load(&paths.authority())?,
            records: Mutex::new(TokenRecords::load(&path)?),
            keys: Mutex::new(KeyStore::load(&paths.capability_keys())?),
            path,
            superblock: superblock.clone(),
            addresses: config.addresses.clone(),
            protection: config.protection,
        })
    }

    /// Certifies the node that management runs on.
    pub fn own_credentials(&self, node: NodeId, now_s: i64) -> Result<Credentials> {
        Ok(self.authority.issue(&Role::Node(node), Validity::of_node(now_s))?)
    }

    /// A new cluster file for clients.
    pub fn cluster_file(&self, now_s: i64) -> Result<ClusterFile> {
        let role = Role::Client(CLIENT_NAME.into());
        let credentials = match self.protection {
            Protection::Plain => String::new(),
            _ => self.authority.issue(&role, Validity::of_client(now_s))?.to_text(),
        };
        Ok(ClusterFile {
            name: self.superblock.name.clone(),
            cluster: self.superblock.uuid.clone(),
            management: self.addresses.clone(),
            networks: vec![],
            rack: None,
            protection: self.protection,
            credentials,
        })
    }

    /// A new token for nodes.
    pub fn node_token(&self, now_s: i64) -> Result<String> {
        let offer = TokenOffer {
            addresses: self.addresses.clone(),
            roles: MemberKind::Node.into(),
            expires: now_s + TOKEN_VALIDITY_S,
            uses: USES,
        };
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let token = records.issue(&self.authority, offer, now_s)?;
        records.store(&self.path)?;
        Ok(token.to_string())
    }

    fn redeem(&self, records: &mut TokenRecords, join: &Join, now_s: i64) -> Result<()> {
        let token: JoinToken = join.secret.parse().map_err(Error::from)?;
        Ok(records.redeem(&self.superblock.uuid, token.id, &token.secret, MemberKind::Node, now_s)?)
    }
}

impl mgmt::Gate for Gate {
    fn check(&self, join: &Join, now_s: i64) -> Result<()> {
        let mut trial = self.records.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.redeem(&mut trial, join, now_s)
    }

    fn admit(&self, join: &Join, node: NodeId, now_s: i64) -> Result<String> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        self.redeem(&mut records, join, now_s)?;
        records.store(&self.path)?;
        if self.protection == Protection::Plain {
            return Ok(String::new());
        }
        let request = hex_bytes(&join.csr).ok_or_else(|| {
            Error::new(Errno::EINVAL, "the request to join has no usable request for a certificate")
                .hint("use the same version of weft on both machines")
        })?;
        Ok(self.authority.certify(&request, &Role::Node(node), Validity::of_node(now_s))?)
    }

    fn capability_keys(&self, now_s: i64) -> Result<String> {
        Ok(self.keys.lock().unwrap_or_else(PoisonError::into_inner).at(now_s)?.render())
    }

    fn certify_api(&self, csr: &str, names: &[String], now_s: i64) -> Result<String> {
        let request = hex_bytes(csr).ok_or_else(|| {
            Error::new(Errno::EINVAL, "the request for a certificate is not in hexadecimal digits")
                .hint("use the same version of weft on both machines")
        })?;
        Ok(self.authority.certify_api(&request, names, now_s)?)
    }

    fn token(&self, client: bool, now_s: i64) -> Result<String> {
        if client { Ok(self.cluster_file(now_s)?.render()) } else { self.node_token(now_s) }
    }
}

/// Bytes as hexadecimal digits.
pub fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
