//! Identities of a cluster's members, and their rights.
//!
//! - [`Authority`]: the cluster's certificate authority. It lives on the management nodes and
//!   certifies nodes and clients.
//! - [`Credentials`]: the certificate and key of one node or client; [`Identity`]: the content of
//!   such a certificate.
//! - [`ClientRecords`]: the clients that were issued certificates, and revocations.
//! - [`JoinToken`], [`TokenRecords`]: tokens with which a machine joins the cluster.
//! - [`tls`]: rustls configurations in which both ends prove that they belong to the same cluster.
//! - [`Capability`]: signed by the metadata service, so that a storage service knows which file a
//!   client may access.
//!
//! The crate opens no sockets. Only functions named `load` or `store` read and write files, and
//! those named `require_private_*` check them. The time is an argument of every function that
//! depends on it, except in rustls, which uses the system's clock to validate certificates.
//! Randomness is that of *ring* (the kernel's).
//!
//! Invariants:
//! - A private key never leaves the machine that made it: a joining machine sends a request signed
//!   by its key.
//! - A role is only read from a certificate whose chain was verified.
//! - Secrets are compared in constant time, never printed, and stored in files of mode 0600 that
//!   are written atomically.
//!
//! ```
//! use identity::{Authority, Identity, Member, Validity};
//! let now = 1_800_000_000;
//! let authority = Authority::create("01234567-89ab-4def-8123-456789abcdef", "scratch", now)?;
//! let credentials = authority.issue(&Member::Client("login1".into()), Validity::of_client(now))?;
//! let identity = Identity::of(credentials.certificate())?;
//! assert_eq!(identity.role, Member::Client("login1".into()));
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
pub use capability::{CAPABILITY_BYTES, Capability, CapabilityRefusal, Grant, Rights};
pub use capability_keys::{CapabilityKey, CapabilityKeys, VerifiedCache};
pub use capability_ring::{CapabilityRing, CoreCapabilityCache};
pub use client_records::{
    CertificateIssue, CertificateTerms, ClientRecord, ClientRecords, ClientStatus, expires_soon,
};
pub use credentials::{Credentials, PendingKey};
pub use error::{Error, Result};
pub use identity::Identity;
pub use limits::*;
pub use owner::{require_private_directory, require_private_file};
pub use protection::Protection;
pub use role::{Member, MemberKind, MemberKinds};
pub use token::{JoinToken, TokenSecret};
pub use token_records::{TokenParameters, TokenRecord, TokenRecords};
