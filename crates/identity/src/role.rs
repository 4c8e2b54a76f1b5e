//! The role that a certificate gives its owner.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use types::{NodeId, is_client_name};

/// Scheme of the URI in a certificate.
const SCHEME: &str = "weft://";

/// A member of a cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Member {
    /// Runs services; the cluster map says which. A mount on a node has a client's certificate.
    Node(NodeId),
    /// Mounts the file system.
    Client(String),
}

/// A role without its id, as a token allows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum MemberKind {
    Node,
    Client,
}

/// A set of member kinds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemberKinds(u8);

impl Member {
    /// Node or client.
    pub fn kind(&self) -> MemberKind {
        match self {
            Member::Node(_) => MemberKind::Node,
            Member::Client(_) => MemberKind::Client,
        }
    }

    /// Refuses names that would be ambiguous in a URI or a log.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Member::Client(name) if !is_client_name(name) => Err(Error::BadClientName { name: name.clone() }),
            _ => Ok(()),
        }
    }

    /// `weft://<cluster uuid>/node/3` or `weft://<cluster uuid>/client/<name>`: the owner's URI in
    /// a certificate.
    pub fn uri(&self, cluster: &str) -> String {
        format!("{SCHEME}{cluster}/{self}")
    }

    /// Parses a certificate's URI into the cluster and the role.
    pub fn from_uri(uri: &str) -> Option<(&str, Member)> {
        let (cluster, rest) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        let (kind, name) = rest.split_once('/')?;
        let role = match kind {
            "node" => Member::Node(NodeId(name.parse().ok()?)),
            "client" if is_client_name(name) => Member::Client(name.to_string()),
            _ => return None,
        };
        // Each role has exactly one form: `node/+3` and `node/03` are invalid.
        (role.uri(cluster) == uri && !cluster.is_empty()).then_some((cluster, role))
    }
}

impl FromStr for Member {
    type Err = Error;

    /// Parses the displayed form of a [`Member`]: `node/3`, `client/login1`.
    fn from_str(text: &str) -> Result<Member> {
        // A placeholder for the cluster.
        match Member::from_uri(&format!("{SCHEME}-/{text}")) {
            Some((_, role)) => Ok(role),
            None => Err(Error::certificate(format!("{text:?} is not a member of a cluster"))),
        }
    }
}

impl Member {
    /// A number for comparing the roles that two connections have proved: the first bytes of the
    /// SHA-256 of its name, little-endian. Never 0.
    pub fn fingerprint(&self) -> u64 {
        let digest = ring::digest::digest(&ring::digest::SHA256, self.to_string().as_bytes());
        let first = digest.as_ref().first_chunk().expect("a digest is longer than a number");
        u64::from_le_bytes(*first).max(1)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Node(id) => write!(f, "node/{id}"),
            Member::Client(name) => write!(f, "client/{name}"),
        }
    }
}

impl MemberKind {
    /// All kinds.
    pub const ALL: [MemberKind; 2] = [MemberKind::Node, MemberKind::Client];

    /// The name, for display and files.
    pub fn name(self) -> &'static str {
        match self {
            MemberKind::Node => "node",
            MemberKind::Client => "client",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<MemberKind> {
        MemberKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    fn bit(self) -> u8 {
        match self {
            MemberKind::Node => 1,
            MemberKind::Client => 2,
        }
    }
}

impl MemberKinds {
    /// Adds a kind.
    pub fn with(self, kind: MemberKind) -> MemberKinds {
        MemberKinds(self.0 | kind.bit())
    }

    /// Whether the set contains a kind.
    pub fn has(self, kind: MemberKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds in the set.
    pub fn iter(self) -> impl Iterator<Item = MemberKind> {
        MemberKind::ALL.into_iter().filter(move |kind| self.has(*kind))
    }

    /// The set as encoded in a token.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Decodes a set; `None` when a bit is unknown.
    pub(crate) fn from_bits(bits: u32) -> Option<MemberKinds> {
        u8::try_from(bits).ok().filter(|bits| *bits <= 3).map(MemberKinds)
    }
}

impl From<MemberKind> for MemberKinds {
    fn from(kind: MemberKind) -> MemberKinds {
        MemberKinds::default().with(kind)
    }
}

impl FromIterator<MemberKind> for MemberKinds {
    fn from_iter<I: IntoIterator<Item = MemberKind>>(kinds: I) -> MemberKinds {
        kinds.into_iter().fold(MemberKinds::default(), MemberKinds::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::MAX_CLIENT_NAME;

    #[test]
    fn a_role_survives_its_uri() {
        for role in
            [Member::Node(NodeId(0)), Member::Node(NodeId(u32::MAX)), Member::Client("a.b_c-1".into())]
        {
            assert_eq!(role.to_string().parse::<Member>().unwrap(), role);
            assert_eq!(Member::from_uri(&role.uri("c1")), Some(("c1", role)));
        }
        assert_eq!(Member::Node(NodeId(3)).uri("c1"), "weft://c1/node/3");
        assert_eq!(Member::Client("login1".into()).uri("c1"), "weft://c1/client/login1");
    }

    #[test]
    fn other_uris_are_no_role() {
        let long = format!("weft://c1/client/{}", "x".repeat(MAX_CLIENT_NAME + 1));
        let bad = [
            "",
            "weft://",
            "weft://c1",
            "weft://c1/node",
            "weft://c1/node/",
            "weft:///node/3",
            "http://c1/node/3",
            "weft://c1/node/+3",
            "weft://c1/node/03",
            "weft://c1/node/4294967296",
            "weft://c1/node/3/",
            "weft://c1/client/",
            "weft://c1/client/a/b",
            "weft://c1/client/a b",
            "weft://c1/admin/3",
            &long,
        ];
        for uri in bad {
            assert_eq!(Member::from_uri(uri), None, "{uri}");
        }
    }
}
