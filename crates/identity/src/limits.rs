//! Limits of this crate.

/// How long a node's certificate is valid, seconds: 10 years. A node can be reached by its
/// administrator only through itself, so its certificate outlives the machine.
pub const NODE_VALIDITY_S: i64 = 10 * YEAR_S;

/// How long a client's certificate is valid, seconds: one year. Clients come and go; a forgotten
/// one shuts itself out.
pub const CLIENT_VALIDITY_S: i64 = YEAR_S;

/// How long a certificate of the HTTP interface is valid, seconds: 90 days. Processes renew theirs
/// long before.
pub const API_VALIDITY_S: i64 = 90 * 24 * 3600;

/// Most names in a certificate of the HTTP interface.
pub const MAX_API_NAMES: usize = 64;

/// How long the authority's own certificate says it is valid, seconds: 50 years, so that no node's
/// certificate outlives it.
pub const AUTHORITY_VALIDITY_S: i64 = 50 * YEAR_S;

/// How far a certificate's validity starts in the past, seconds: clocks of machines that just
/// joined may be wrong by this much.
pub const CLOCK_SKEW_S: i64 = 3600;

/// How long a join token is valid unless the administrator says otherwise, seconds: a day's work of
/// installing machines.
pub const TOKEN_VALIDITY_S: i64 = 24 * 3600;

/// Most tokens that are in force at the same time: an administrator who needs more has a program
/// that should ask for a token with more uses.
pub const MAX_TOKENS: usize = 1024;

/// Most addresses in a token: more management nodes than a cluster has.
pub const MAX_TOKEN_ADDRESSES: usize = 16;

/// Longest token, characters: far above what [`MAX_TOKEN_ADDRESSES`] long addresses need.
pub const MAX_TOKEN_CHARS: usize = 8 * 1024;

/// Most clients that management has a record of: the file of records stays below
/// [`MAX_FILE_BYTES`].
pub const MAX_CLIENTS: usize = 2048;

/// Most clients whose revoked certificates have not ended yet: the cluster map carries them all.
pub const MAX_REVOKED: usize = 512;

/// How long a client whose certificate has ended stays on record, seconds: 90 days.
pub const EXPIRED_KEPT_S: i64 = 90 * 24 * 3600;

/// A certificate is renewed when this part of its validity is left: one in so many.
pub const RENEWED_IN_LAST: i64 = 3;

/// From how long before the end of a certificate people are warned, seconds: 30 days.
pub const EXPIRY_WARNING_S: i64 = 30 * 24 * 3600;

/// Most keys that a service accepts capabilities of: the one that signs, and those of the rotations
/// before whose capabilities may not have expired yet.
pub const MAX_CAPABILITY_KEYS: usize = 4;

/// How long a capability is valid, seconds. Long enough that a file in use is seldom asked for
/// again, short enough that what was stolen or belongs to an ended session is soon worth nothing.
pub const CAPABILITY_VALIDITY_S: u16 = 600;

/// How long a key of capabilities signs, seconds: a day.
pub const KEY_ROTATION_S: i64 = 24 * 3600;

/// How long a new key is only handed out before it signs, seconds: a node that hasn't heard of
/// management for so long takes no changes any more.
pub const KEY_SPREAD_S: i64 = 60;

/// Capabilities that a core remembers as verified. Files in use at the same time on one core; 80
/// bytes each.
pub const VERIFIED_CAPABILITIES: usize = 1024;

/// Longest file that is read, bytes: far above a certificate chain or a full list of tokens, small
/// enough to read whatever is there.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

const YEAR_S: i64 = 365 * 24 * 3600;
