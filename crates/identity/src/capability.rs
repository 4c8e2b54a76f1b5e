//! Capabilities: the metadata service's word that a session may read or write a file's chunks.
//!
//! A capability travels with storage requests in a form of 64 bytes, little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version: 1 without an epoch, else 2 |
//! | 1 | 1 | rights: bit 0 read, bit 1 write |
//! | 2 | 2 | how long it is valid from when it was signed, seconds |
//! | 4 | 4 | id of the key |
//! | 8 | 8 | session |
//! | 16 | 8 | inode |
//! | 24 | 8 | holder: [`Role::fingerprint`](crate::Role::fingerprint) of who may use it; 0: whoever has the session |
//! | 32 | 8 | expiry, seconds of the cluster's time ([`CapabilityRing::time_s`](crate::CapabilityRing::time_s)) |
//! | 40 | 16 | the first 16 bytes of HMAC-SHA256 over bytes 0..40, of version 2 over bytes 0..40 and 56..64 |
//! | 56 | 8 | the highest lease epoch that its requests may say they have; 0 in version 1 |
//!
//! They name the session and its holder, and a service compares these with the session that sends
//! them and with what its connection has proved. Clients with one certificate are one holder: among
//! those, whoever has the bytes has the right. So they travel encrypted, or on a network that is
//! trusted.

use types::{InodeId, SessionId};

/// Length of a capability, bytes.
pub const CAPABILITY_BYTES: usize = 64;

/// Bytes before the code, which is over them.
const FRONT_BYTES: usize = 40;

/// Bytes that the code is over, with the epoch behind the others.
const SIGNED_BYTES: usize = 48;

/// Bytes of the code that are kept: a forger has one chance in 2^128 for each attempt, and an
/// attempt is a request.
pub(crate) const MAC_BYTES: usize = 16;

const VERSION: u8 = 1;

/// Of one with an epoch.
const VERSION_WITH_EPOCH: u8 = 2;

/// What may be done with a file's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rights(u8);

impl Rights {
    /// Read data and where it ends.
    pub const READ: Rights = Rights(1);
    /// Change data: write, cut, punch.
    pub const WRITE: Rights = Rights(2);
    /// Both.
    pub const READ_WRITE: Rights = Rights(3);

    /// Whether all of `wanted` is allowed.
    pub fn allow(self, wanted: Rights) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// Who may do what with which file, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// Whom it was given to.
    pub session: SessionId,
    /// The file.
    pub inode: InodeId,
    /// What is allowed.
    pub rights: Rights,
    /// The member to which it was given, as a fingerprint of what it proved to be: nobody else can
    /// use it, even if he gets hold of it. 0 where nobody proves anything.
    pub holder: u64,
    /// The highest lease epoch of the file that a request may have: else anybody who may read it
    /// could make targets refuse what others ask. 0: none.
    pub epoch: u64,
    /// How long it is valid from when it was signed, seconds: its user doesn't know the cluster's
    /// time, and renews it by this.
    pub valid_s: u16,
    /// When it ends, seconds of the cluster's time.
    pub expires: u64,
}

/// A grant as it is signed and sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    bytes: [u8; CAPABILITY_BYTES],
}

/// Why a capability doesn't allow what is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("the capability is malformed")]
    Malformed,
    #[error("the capability's key {0} is not known here")]
    UnknownKey(u32),
    #[error("the capability is not genuine")]
    Forged,
    #[error("the capability has expired")]
    Expired,
    #[error("the capability is of another session")]
    OtherSession,
    #[error("the capability was given to somebody else")]
    OtherHolder,
    #[error("the capability is for another file")]
    OtherInode,
    #[error("the capability doesn't allow this")]
    Rights,
    #[error("the capability is of an earlier epoch of its file")]
    EarlierEpoch,
}

impl Refusal {
    /// Whether the client should ask the metadata service for another one and try again.
    pub fn is_stale(self) -> bool {
        matches!(self, Refusal::Expired | Refusal::UnknownKey(_) | Refusal::EarlierEpoch)
    }
}

impl From<Refusal> for types::Error {
    fn from(refusal: Refusal) -> types::Error {
        let errno = if refusal.is_stale() { types::Errno::EKEYEXPIRED } else { types::Errno::EACCES };
        types::Error::new(errno, refusal.to_string()).hint("close the file and open it again")
    }
}

impl Grant {
    /// Whether this allows a session of a holder to do something with a file.
    pub fn check(
        &self,
        session: SessionId,
        holder: u64,
        inode: InodeId,
        wanted: Rights,
    ) -> Result<(), Refusal> {
        if self.session != session {
            Err(Refusal::OtherSession)
        } else if self.holder != holder {
            Err(Refusal::OtherHolder)
        } else if self.inode != inode {
            Err(Refusal::OtherInode)
        } else if !self.rights.allow(wanted) {
            Err(Refusal::Rights)
        } else {
            Ok(())
        }
    }

    /// The bytes that are signed.
    pub(crate) fn signed(&self, key: u32) -> [u8; SIGNED_BYTES] {
        let mut bytes = [0; SIGNED_BYTES];
        bytes[0] = if self.epoch == 0 { VERSION } else { VERSION_WITH_EPOCH };
        bytes[1] = self.rights.0;
        bytes[2..4].copy_from_slice(&self.valid_s.to_le_bytes());
        bytes[4..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.inode.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.holder.to_le_bytes());
        bytes[32..FRONT_BYTES].copy_from_slice(&self.expires.to_le_bytes());
        bytes[FRONT_BYTES..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }
}

/// What the code is over of the bytes that are signed: an epoch where there is one.
pub(crate) fn covered(signed: &[u8; SIGNED_BYTES]) -> &[u8] {
    if signed[0] == VERSION_WITH_EPOCH { signed } else { &signed[..FRONT_BYTES] }
}

impl Capability {
    pub(crate) fn new(signed: [u8; SIGNED_BYTES], mac: [u8; MAC_BYTES]) -> Capability {
        let mut bytes = [0; CAPABILITY_BYTES];
        bytes[..FRONT_BYTES].copy_from_slice(&signed[..FRONT_BYTES]);
        bytes[FRONT_BYTES..FRONT_BYTES + MAC_BYTES].copy_from_slice(&mac);
        bytes[FRONT_BYTES + MAC_BYTES..].copy_from_slice(&signed[FRONT_BYTES..]);
        Capability { bytes }
    }

    /// Takes one out of a message. Nothing but its length is looked at.
    pub fn from_bytes(bytes: &[u8]) -> Result<Capability, Refusal> {
        Ok(Capability { bytes: bytes.try_into().map_err(|_| Refusal::Malformed)? })
    }

    /// As it is sent.
    pub fn as_bytes(&self) -> &[u8; CAPABILITY_BYTES] {
        &self.bytes
    }

    /// The key that it says it was signed with.
    pub fn key_id(&self) -> u32 {
        u32::from_le_bytes(self.field(4))
    }

    /// What it says, true or not.
    pub(crate) fn claim(&self) -> Result<Grant, Refusal> {
        let [version, rights, valid @ ..] = self.field::<4>(0);
        let epoch = u64::from_le_bytes(self.field(FRONT_BYTES + MAC_BYTES));
        let expected = if epoch == 0 { VERSION } else { VERSION_WITH_EPOCH };
        if version != expected || !(1..=3).contains(&rights) {
            return Err(Refusal::Malformed);
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
        signed[..FRONT_BYTES].copy_from_slice(&self.bytes[..FRONT_BYTES]);
        signed[FRONT_BYTES..].copy_from_slice(&self.bytes[FRONT_BYTES + MAC_BYTES..]);
        signed
    }

    pub(crate) fn mac(&self) -> &[u8] {
        &self.bytes[FRONT_BYTES..FRONT_BYTES + MAC_BYTES]
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("fields lie within the capability")
    }
}

impl std::fmt::Debug for Capability {
    /// Without the code: what is logged must not be usable.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Capability({:?}, key {})", self.claim(), self.key_id())
    }
}
