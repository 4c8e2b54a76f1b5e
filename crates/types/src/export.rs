//! What clients of a network may do: read-only exports and squashed users.

use crate::{Credentials, Errno, Error, Subnet};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The user and the group that squashed users become unless a rule says otherwise: `nobody`.
pub const NOBODY: u32 = 65_534;

/// The clients that a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExportClients {
    /// Those on the cluster's own nodes: over a Unix socket, from a loopback address, or from an address that a node has.
    Local,
    /// Those of a network.
    Network(Subnet),
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
            Squash::Root if user.uid == 0 => self.anonymous(user),
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

/// What holds for a client at an address (`local`: on one of the cluster's nodes): the most specific rule, `local` before any network. Without one
/// everything is allowed.
pub fn export_for(rules: &[ExportRule], ip: Option<IpAddr>, local: bool) -> Export {
    let fits = |rule: &&ExportRule| match rule.clients {
        ExportClients::Local => local,
        ExportClients::Network(subnet) => ip.is_some_and(|ip| subnet.contains(ip)),
    };
    let specific = |rule: &&ExportRule| match rule.clients {
        ExportClients::Local => u16::MAX,
        ExportClients::Network(subnet) => subnet.bits().into(),
    };
    rules.iter().filter(fits).max_by_key(specific).map_or_else(Export::default, |rule| rule.export)
}

impl FromStr for ExportClients {
    type Err = Error;

    /// `local`, a network, or one address.
    fn from_str(text: &str) -> Result<ExportClients, Error> {
        if text == "local" {
            return Ok(ExportClients::Local);
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(ExportClients::Network(Subnet::of(ip)));
        }
        text.parse().map(ExportClients::Network).map_err(|error: Error| {
            Error::new(Errno::EINVAL, error.message)
                .hint("write ADDRESS/BITS (10.1.0.0/16, fd00::/8), an address, or local")
        })
    }
}

impl fmt::Display for ExportClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportClients::Local => f.write_str("local"),
            ExportClients::Network(subnet) => subnet.fmt(f),
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
