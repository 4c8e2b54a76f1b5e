//! Capabilities: signed proof by the metadata service that a session may read or write a file's
//! chunks.
//!
//! A capability is sent with storage requests as 64 bytes, little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version: 1 without an epoch, else 2 |
//! | 1 | 1 | rights: bit 0 read, bit 1 write |
//! | 2 | 2 | how long it is valid from when it was signed, seconds |
//! | 4 | 4 | id of the key |
//! | 8 | 8 | session |
//! | 16 | 8 | inode |
//! | 24 | 8 | holder: [`Member::fingerprint`](crate::Role::fingerprint) of the member that may use it; 0: the client that has the session |
//! | 32 | 8 | expiry, seconds of the cluster's time ([`CapabilityRing::cluster_time_s`](crate::CapabilityRing::cluster_time_s)) |
//! | 40 | 16 | the first 16 bytes of HMAC-SHA256 over bytes 0..40, of version 2 over bytes 0..40 and 56..64 |
//! | 56 | 8 | the highest lease epoch that its requests may carry; 0 in version 1 |
//!
//! A capability names the session and its holder. A service compares these with the session that
//! sends it, and with the role that its connection has proved. Clients that share a certificate are
//! one holder: any of them can use the capability if it gets the bytes. So capabilities are sent
//! encrypted, or on a trusted network.

use types::{InodeId, SessionId};

/// Length of a capability, bytes.
pub const CAPABILITY_BYTES: usize = 64;

/// Bytes before the MAC, which are authenticated.
const MAC_OFFSET: usize = 40;

/// Authenticated bytes, with the epoch after the others.
const SIGNED_BYTES: usize = 48;

/// Bytes of the truncated MAC: a forger has one chance in 2^128 per attempt, and each attempt is a
/// request.
pub(crate) const MAC_BYTES: usize = 16;

const VERSION: u8 = 1;

/// Version of a capability with an epoch.
const VERSION_WITH_EPOCH: u8 = 2;

/// Access rights to a file's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rights(u8);

impl Rights {
    /// Read data, and find data and holes.
    pub const READ: Rights = Rights(1);
    /// Change data: write, truncate, punch holes.
    pub const WRITE: Rights = Rights(2);
    /// Both.
    pub const READ_WRITE: Rights = Rights(3);

    /// Whether all `wanted` rights are included.
    pub fn allow(self, wanted: Rights) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// Access of a session to a file, with an expiry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The session that it was granted to.
    pub session: SessionId,
    /// The file.
    pub inode: InodeId,
    /// The granted rights.
    pub rights: Rights,
    /// Fingerprint of the role of the member that it was granted to: no other member can use it,
    /// even with its bytes. 0 where connections aren't authenticated.
    pub holder: u64,
    /// The highest lease epoch of the file that a request may carry. Without this limit, any reader
    /// of the file could make targets refuse the requests of others. 0: none.
    pub epoch: u64,
    /// How long it is valid from when it was signed, seconds. The client doesn't know the cluster's
    /// time, and renews the capability by this.
    pub valid_s: u16,
    /// Expiry, seconds of the cluster's time.
    pub expires: u64,
}

/// A grant in its signed and encoded form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    bytes: [u8; CAPABILITY_BYTES],
}

/// Why a capability doesn't allow a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CapabilityRefusal {
    #[error("the capability is malformed")]
    Malformed,
    #[error("the capability's key {0} is unknown")]
    UnknownKey(u32),
    #[error("the capability is not genuine")]
    Forged,
    #[error("the capability has expired")]
    Expired,
    #[error("the capability is of another session")]
    OtherSession,
    #[error("the capability was granted to another member")]
    OtherHolder,
    #[error("the capability is for another file")]
    OtherInode,
    #[error("the capability doesn't allow this")]
    Rights,
    #[error("the capability is of an earlier epoch of its file")]
    EarlierEpoch,
}

impl CapabilityRefusal {
    /// Whether the client should request a new capability from the metadata service and retry.
    pub fn is_stale(self) -> bool {
        matches!(
            self,
            CapabilityRefusal::Expired | CapabilityRefusal::UnknownKey(_) | CapabilityRefusal::EarlierEpoch
        )
    }
}

impl From<CapabilityRefusal> for types::Error {
    fn from(refusal: CapabilityRefusal) -> types::Error {
        let errno = match refusal.is_stale() {
            true => types::Refusal::ExpiredCapability.into(),
            false => types::Errno::EACCES,
        };
        types::Error::new(errno, refusal.to_string()).hint("close the file and open it again")
    }
}

impl Grant {
    /// Checks that this grants `wanted` rights on a file to a session of a holder.
    pub fn check(
        &self,
        session: SessionId,
        holder: u64,
        inode: InodeId,
        wanted: Rights,
    ) -> Result<(), CapabilityRefusal> {
        if self.session != session {
            Err(CapabilityRefusal::OtherSession)
        } else if self.holder != holder {
            Err(CapabilityRefusal::OtherHolder)
        } else if self.inode != inode {
            Err(CapabilityRefusal::OtherInode)
        } else if !self.rights.allow(wanted) {
            Err(CapabilityRefusal::Rights)
        } else {
            Ok(())
        }
    }

    /// The bytes that are signed.
    pub(crate) fn signed_bytes(&self, key: u32) -> [u8; SIGNED_BYTES] {
        let mut bytes = [0; SIGNED_BYTES];
        bytes[0] = if self.epoch == 0 { VERSION } else { VERSION_WITH_EPOCH };
        bytes[1] = self.rights.0;
        bytes[2..4].copy_from_slice(&self.valid_s.to_le_bytes());
        bytes[4..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.inode.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.holder.to_le_bytes());
        bytes[32..MAC_OFFSET].copy_from_slice(&self.expires.to_le_bytes());
        bytes[MAC_OFFSET..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }
}

/// The part of the signed bytes that the MAC covers: it includes the epoch if there is one.
pub(crate) fn mac_input(signed: &[u8; SIGNED_BYTES]) -> &[u8] {
    if signed[0] == VERSION_WITH_EPOCH { signed } else { &signed[..MAC_OFFSET] }
}

impl Capability {
    pub(crate) fn new(signed: [u8; SIGNED_BYTES], mac: [u8; MAC_BYTES]) -> Capability {
        let mut bytes = [0; CAPABILITY_BYTES];
        bytes[..MAC_OFFSET].copy_from_slice(&signed[..MAC_OFFSET]);
        bytes[MAC_OFFSET..MAC_OFFSET + MAC_BYTES].copy_from_slice(&mac);
        bytes[MAC_OFFSET + MAC_BYTES..].copy_from_slice(&signed[MAC_OFFSET..]);
        Capability { bytes }
    }

    /// Takes a capability from a message. Validates only its length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Capability, CapabilityRefusal> {
        Ok(Capability { bytes: bytes.try_into().map_err(|_| CapabilityRefusal::Malformed)? })
    }

    /// The encoded form.
    pub fn as_bytes(&self) -> &[u8; CAPABILITY_BYTES] {
        &self.bytes
    }

    /// Id of the key that it claims to be signed with.
    pub fn key_id(&self) -> u32 {
        u32::from_le_bytes(self.field(4))
    }

    /// The claimed grant, not verified.
    pub(crate) fn claimed_grant(&self) -> Result<Grant, CapabilityRefusal> {
        let [version, rights, valid @ ..] = self.field::<4>(0);
        let epoch = u64::from_le_bytes(self.field(MAC_OFFSET + MAC_BYTES));
        let expected = if epoch == 0 { VERSION } else { VERSION_WITH_EPOCH };
        if version != expected || !(1..=3).contains(&rights) {
            return Err(CapabilityRefusal::Malformed);
        }
        Ok(Grant {
            session: SessionId(u64::from_le_bytes(self.field(8))),
            inode: InodeId(u64::from_le_bytes(self.field(16))),
            rights: Rights(rights),
            holder: u64::from_le_bytes(self.field(24)),
            epoch,
            valid_s: u16::from_le_bytes(valid),
            expires: u64::from_le_bytes(self.field(32)),
        })
    }

    pub(crate) fn signed(&self) -> [u8; SIGNED_BYTES] {
        let mut signed = [0; SIGNED_BYTES];
        signed[..MAC_OFFSET].copy_from_slice(&self.bytes[..MAC_OFFSET]);
        signed[MAC_OFFSET..].copy_from_slice(&self.bytes[MAC_OFFSET + MAC_BYTES..]);
        signed
    }

    pub(crate) fn mac(&self) -> &[u8] {
        &self.bytes[MAC_OFFSET..MAC_OFFSET + MAC_BYTES]
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("fields lie within the capability")
    }
}

impl std::fmt::Debug for Capability {
    /// Omits the MAC: log output must not contain a usable capability.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Capability({:?}, key {})", self.claimed_grant(), self.key_id())
    }
}
