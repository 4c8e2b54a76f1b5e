//! Whether connections are encrypted, and how both ends negotiate it.

use std::fmt;

/// Protocol name of a connection that stays encrypted.
const ENCRYPTED: &[u8] = b"weft/1";

/// Protocol name of a connection that is plain after its handshake.
const PLAIN: &[u8] = b"weft/1 plain";

/// Protection of a connection after its handshake. The ends negotiate it within the handshake (as
/// the application protocol, RFC 7301), whose transcript both verify. So an attacker on the path
/// can't weaken it, and it is never weaker than either end's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Protection {
    /// Encrypted and authenticated.
    #[default]
    Encrypted,
    /// The ends authenticate by the handshake; then the connection is plaintext. For networks that
    /// only trusted machines can reach: an attacker who can read or change packets can read and
    /// change all data. Used only if both ends allow it.
    HandshakeOnly,
}

impl Protection {
    /// Protocols that an end with this configuration offers or accepts, in order of preference.
    pub(crate) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Protection::Encrypted => vec![ENCRYPTED.to_vec()],
            Protection::HandshakeOnly => vec![PLAIN.to_vec(), ENCRYPTED.to_vec()],
        }
    }

    /// The protection that a handshake negotiated; `None` when the peer doesn't speak this
    /// protocol.
    pub fn negotiated(protocol: Option<&[u8]>) -> Option<Protection> {
        match protocol? {
            ENCRYPTED => Some(Protection::Encrypted),
            PLAIN => Some(Protection::HandshakeOnly),
            _ => None,
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protection::Encrypted => "encrypted",
            Protection::HandshakeOnly => "not encrypted",
        })
    }
}
