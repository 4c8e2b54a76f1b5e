//! Limits of this crate.

/// Validity of a node's certificate, seconds: 10 years. An administrator can reach a node only
/// through the node itself, so its certificate outlives the machine.
pub const NODE_VALIDITY_S: i64 = 10 * YEAR_S;

/// Validity of a client's certificate, seconds: one year. The access of a forgotten client ends by
/// itself.
pub const CLIENT_VALIDITY_S: i64 = YEAR_S;

/// Validity of a certificate of the HTTP interface, seconds: 90 days. Processes renew theirs long
/// before.
pub const API_VALIDITY_S: i64 = 90 * 24 * 3600;

/// Maximum number of names in a certificate of the HTTP interface.
pub const MAX_API_NAMES: usize = 64;

/// Validity of the authority's own certificate, seconds: 50 years, so that no node's certificate
/// outlives it.
pub const AUTHORITY_VALIDITY_S: i64 = 50 * YEAR_S;

/// How far in the past a certificate's validity starts, seconds: the clock of a machine that just
/// joined may be wrong by this much.
pub const CLOCK_SKEW_S: i64 = 3600;

/// Default validity of a join token, seconds: a day's work of installing machines.
pub const TOKEN_VALIDITY_S: i64 = 24 * 3600;

/// Maximum number of valid tokens: an administrator who needs more runs a script, which should
/// request a token with more uses.
pub const MAX_TOKENS: usize = 1024;

/// Maximum number of addresses in a token: more management nodes than a cluster has.
pub const MAX_TOKEN_ADDRESSES: usize = 16;

/// Longest token, characters: far more than [`MAX_TOKEN_ADDRESSES`] long addresses need.
pub const MAX_TOKEN_CHARS: usize = 8 * 1024;

/// Maximum number of recorded clients: the file of records stays below [`MAX_FILE_BYTES`].
pub const MAX_CLIENTS: usize = 2048;

/// Maximum number of clients with revoked certificates that haven't expired: the cluster map
/// carries them all.
pub const MAX_REVOKED: usize = 512;

/// How long a client whose certificate has expired stays on record, seconds: 90 days.
pub const EXPIRED_RETENTION_S: i64 = 90 * 24 * 3600;

/// A certificate is renewed when one part in this many of its validity is left.
pub const RENEWAL_FRACTION: i64 = 3;

/// How long before the expiry of a certificate administrators are warned, seconds: 30 days.
pub const EXPIRY_WARNING_S: i64 = 30 * 24 * 3600;

/// Maximum number of keys whose capabilities a service accepts: the signing key, and those of
/// earlier rotations whose capabilities may not have expired yet.
pub const MAX_CAPABILITY_KEYS: usize = 4;

/// Validity of a capability, seconds. Long enough that clients rarely renew it for a file in use.
/// Short enough that a stolen one, or one of an ended session, soon becomes useless.
pub const CAPABILITY_VALIDITY_S: u16 = 600;

/// How long a capability key signs, seconds: a day.
pub const KEY_ROTATION_S: i64 = 24 * 3600;

/// How long a new key is distributed before it signs, seconds: a node without contact to management
/// for this long accepts no changes any more.
pub const KEY_DISTRIBUTION_S: i64 = 60;

/// Verified capabilities that a core caches: those of files in use at the same time; 80 bytes each.
pub const VERIFIED_CAPABILITIES: usize = 1024;

/// Longest file that is read, bytes: far longer than a certificate chain or a full list of tokens,
/// small enough to read any file.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

const YEAR_S: i64 = 365 * 24 * 3600;
