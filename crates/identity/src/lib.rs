//! Who is who in a cluster, and who may do what.
//!
//! - [`Authority`]: the cluster's certificate authority. It lives on the management nodes and
//!   certifies nodes and clients.
//! - [`Credentials`]: the certificate and key of one node or client; [`Identity`]: what such a
//!   certificate says.
//! - [`ClientRecords`]: which clients were given certificates, and whose are revoked.
//! - [`JoinToken`], [`TokenRecords`]: what an administrator carries to a machine that is to become
//!   a member.
//! - [`tls`]: configurations of rustls in which both ends prove that they belong to the same
//!   cluster.
//! - [`Capability`]: what the metadata service signs so that a storage service knows which file a
//!   client may touch.
//!
//! There is no socket here; files are read and written only where a function is named `load` or
//! `store`, and looked at where it is named `require_private_*`. The time is an argument of
//! everything that depends on it, except for rustls, which asks the system's clock when it judges a
//! certificate. Randomness is that of *ring* (the kernel's).
//!
//! Invariants:
//! - A private key never leaves the machine that made it: who joins sends a request that its key
//!   has signed.
//! - A role is read from a certificate after its chain was verified, and nowhere else.
//! - Secrets are compared in constant time, never printed, and stored in files of mode 0600 that
//!   appear whole or not at all.
//!
//! ```
//! use identity::{Authority, Identity, Role, Validity};
//! let now = 1_800_000_000;
//! let authority = Authority::create("01234567-89ab-4def-8123-456789abcdef", "scratch", now)?;
//! let credentials = authority.issue(&Role::Client("login1".into()), Validity::of_client(now))?;
//! let identity = Identity::of(credentials.certificate())?;
//! assert_eq!(identity.role, Role::Client("login1".into()));
//! # Ok::<(), identity::Error>(())
//! ```

mod authority;
mod capability;
mod capability_keys;
mod capability_ring;
mod client_records;
mod credentials;
mod error;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod hex;
mod identity;
mod limits;
mod owner;
mod protection;
mod role;
pub mod tls;
mod token;
mod token_records;
mod verifier;

pub use authority::{Authority, CaCertificate, Fingerprint, Validity};
pub use capability::{CAPABILITY_BYTES, Capability, Grant, Refusal, Rights};
pub use capability_keys::{CapabilityKey, CapabilityKeys, VerifiedCache};
pub use capability_ring::{CapabilityRing, CoreRing};
pub use client_records::{ClientRecord, ClientRecords, Issue, Standing, Terms, expires_soon};
pub use credentials::{Credentials, PendingKey};
pub use error::{Error, Result};
pub use identity::Identity;
pub use limits::*;
pub use owner::{require_private_directory, require_private_file};
pub use protection::Protection;
pub use role::{MemberKind, MemberKinds, Role};
pub use token::{JoinToken, TokenSecret};
pub use token_records::{TokenOffer, TokenRecord, TokenRecords};
