//! Export rules: which clients, by name or network, have read-only access, no access or squashed
//! users.

use crate::{Credentials, Errno, Error, MAX_CLIENT_NAME, Subnet, is_client_name};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Default user and group that squashed users are mapped to: `nobody`.
pub const NOBODY: u32 = 65_534;

/// Prefix of a rule that names one client.
const CLIENT_PREFIX: &str = "client:";

/// The clients that a rule applies to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExportClients {
    /// Clients on the cluster's own nodes: over a Unix socket, from a loopback address, or from an
    /// address that a node has.
    Local,
    /// Clients in a network.
    Network(Subnet),
    /// The client whose certificate has this name.
    Client(String),
}

/// Access of clients to files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportAccess {
    /// Reading and writing.
    #[default]
    Rw,
    /// Reading only.
    Ro,
    /// None: they can't mount.
    None,
}

/// Which users of a client are mapped to the anonymous user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Squash {
    /// None.
    #[default]
    None,
    /// Root, and the group of root.
    Root,
    /// All users.
    All,
}

/// Access and squashing of some clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Export {
    /// Access to files.
    #[serde(default)]
    pub access: ExportAccess,
    /// Users that are mapped to the anonymous user.
    #[serde(default)]
    pub squash: Squash,
    /// The anonymous user.
    #[serde(default = "nobody")]
    pub anon_uid: u32,
    /// The anonymous group.
    #[serde(default = "nobody")]
    pub anon_gid: u32,
}

/// An export rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportRule {
    /// Clients that it applies to.
    pub clients: ExportClients,
    /// Their access and squashing.
    #[serde(flatten)]
    pub export: Export,
}

fn nobody() -> u32 {
    NOBODY
}

impl Default for Export {
    /// The default without any rule: read-write access, no squashing.
    fn default() -> Export {
        Export { access: ExportAccess::Rw, squash: Squash::None, anon_uid: NOBODY, anon_gid: NOBODY }
    }
}

impl Export {
    /// Returns the credentials that a user has after squashing.
    pub fn squashed(&self, user: Credentials) -> Credentials {
        match self.squash {
            Squash::None => user,
            Squash::All => self.anonymous(user),
            // A user whom the client's kernel doesn't disclose may be root.
            Squash::Root if user.uid == 0 || user.is_unknown() => self.anonymous(user),
            Squash::Root if user.gid == 0 => Credentials { gid: self.anon_gid, ..user },
            Squash::Root => user,
        }
    }

    fn anonymous(&self, user: Credentials) -> Credentials {
        Credentials { uid: self.anon_uid, gid: self.anon_gid, ..user }
    }

    /// Returns the supplementary groups that a user has after squashing.
    pub fn squashed_groups(&self, mut groups: Vec<u32>) -> Vec<u32> {
        match self.squash {
            Squash::None => {}
            Squash::Root => groups.retain(|group| *group != 0),
            Squash::All => groups.clear(),
        }
        groups
    }
}

/// The properties of a client that rules match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientOrigin<'a> {
    /// Name in its certificate.
    pub name: Option<&'a str>,
    /// Address of its connection.
    pub ip: Option<IpAddr>,
    /// Whether it is on one of the cluster's nodes.
    pub local: bool,
}

/// The export settings of a client, from the most specific rule: a rule for its name precedes
/// `local`, which precedes any network; a longer prefix precedes a shorter one. Without a rule
/// everything is allowed.
pub fn export_for(rules: &[ExportRule], client: &ClientOrigin<'_>) -> Export {
    let fits = |rule: &&ExportRule| match &rule.clients {
        ExportClients::Local => client.local,
        ExportClients::Network(subnet) => client.ip.is_some_and(|ip| subnet.contains(ip)),
        ExportClients::Client(name) => client.name == Some(name),
    };
    let specific = |rule: &&ExportRule| match &rule.clients {
        ExportClients::Client(_) => u16::MAX,
        ExportClients::Local => u16::MAX - 1,
        ExportClients::Network(subnet) => subnet.bits().into(),
    };
    rules.iter().filter(fits).max_by_key(specific).map_or_else(Export::default, |rule| rule.export)
}

impl FromStr for ExportClients {
    type Err = Error;

    /// `local`, a network, one address, or `client:NAME`.
    fn from_str(text: &str) -> Result<ExportClients, Error> {
        if text == "local" {
            return Ok(ExportClients::Local);
        }
        if let Some(name) = text.strip_prefix(CLIENT_PREFIX) {
            return match is_client_name(name) {
                true => Ok(ExportClients::Client(name.into())),
                false => Err(Error::new(Errno::EINVAL, format!("{name:?} can't be a client's name")).hint(
                    format!(
                        "use 1 to {MAX_CLIENT_NAME} letters, digits, '.', '_' and '-' (weft client list)"
                    ),
                )),
            };
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(ExportClients::Network(Subnet::of(ip)));
        }
        text.parse().map(ExportClients::Network).map_err(|error: Error| {
            Error::new(Errno::EINVAL, error.message)
                .hint("write ADDRESS/BITS (10.1.0.0/16, fd00::/8), an address, local, or client:NAME")
        })
    }
}

impl fmt::Display for ExportClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportClients::Local => f.write_str("local"),
            ExportClients::Network(subnet) => subnet.fmt(f),
            ExportClients::Client(name) => write!(f, "{CLIENT_PREFIX}{name}"),
        }
    }
}

impl Serialize for ExportClients {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ExportClients {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ExportClients, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| serde::de::Error::custom(error.message))
    }
}

#[cfg(test)]
mod tests;
