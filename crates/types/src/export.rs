//! What some clients may do, by their name or their network: read-only exports and squashed users.

use crate::{Credentials, Errno, Error, MAX_CLIENT_NAME, Subnet, is_client_name};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The user and the group that squashed users become unless a rule says otherwise: `nobody`.
pub const NOBODY: u32 = 65_534;

/// How a rule for one client is written, before its name.
const CLIENT_PREFIX: &str = "client:";

/// The clients that a rule is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExportClients {
    /// Those on the cluster's own nodes: over a Unix socket, from a loopback address, or from an
    /// address that a node has.
    Local,
    /// Those of a network.
    Network(Subnet),
    /// The one whose certificate has this name.
    Client(String),
}

/// What clients may do with files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportAccess {
    /// Read and change them.
    #[default]
    Rw,
    /// Read them.
    Ro,
    /// Nothing: they can't mount.
    None,
}

/// Which users of a client lose who they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Squash {
    /// None.
    #[default]
    None,
    /// Root, and the group of root.
    Root,
    /// Everybody.
    All,
}

/// What holds for some clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Export {
    /// What they may do.
    #[serde(default)]
    pub access: ExportAccess,
    /// Who of them loses who they are.
    #[serde(default)]
    pub squash: Squash,
    /// Whom those become.
    #[serde(default = "nobody")]
    pub anon_uid: u32,
    /// And the group.
    #[serde(default = "nobody")]
    pub anon_gid: u32,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportRule {
    /// Whom it is for.
    pub clients: ExportClients,
    /// What holds for them.
    #[serde(flatten)]
    pub export: Export,
}

fn nobody() -> u32 {
    NOBODY
}

impl Default for Export {
    /// As without any rule: everything is allowed, and everybody is who they are.
    fn default() -> Export {
        Export { access: ExportAccess::Rw, squash: Squash::None, anon_uid: NOBODY, anon_gid: NOBODY }
    }
}

impl Export {
    /// Who a user counts as.
    pub fn squashed(&self, user: Credentials) -> Credentials {
        match self.squash {
            Squash::None => user,
            Squash::All => self.anonymous(user),
            // A user whom the client's kernel keeps to itself can be root.
            Squash::Root if user.uid == 0 || user.is_unknown() => self.anonymous(user),
            Squash::Root if user.gid == 0 => Credentials { gid: self.anon_gid, ..user },
            Squash::Root => user,
        }
    }

    fn anonymous(&self, user: Credentials) -> Credentials {
        Credentials { uid: self.anon_uid, gid: self.anon_gid, ..user }
    }

    /// The groups of a user that count.
    pub fn squashed_groups(&self, mut groups: Vec<u32>) -> Vec<u32> {
        match self.squash {
            Squash::None => {}
            Squash::Root => groups.retain(|group| *group != 0),
            Squash::All => groups.clear(),
        }
        groups
    }
}

/// Where a client comes from, as far as rules go by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientOrigin<'a> {
    /// The name that its certificate proves.
    pub name: Option<&'a str>,
    /// The address of its connection.
    pub ip: Option<IpAddr>,
    /// Whether it is on one of the cluster's nodes.
    pub local: bool,
}

/// What holds for a client: the most specific rule, one for its name before `local`, that before
/// any network, a longer prefix before a shorter one. Without a rule everything is allowed.
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
