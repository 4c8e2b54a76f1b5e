//! Errors, with a hint for the user.

use std::io;
use std::path::{Path, PathBuf};
use types::Errno;

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a certificate, key or token can't be made or used. No message contains a secret.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("can't {action} {}: {cause}", path.display())]
    Io { action: &'static str, path: PathBuf, cause: io::Error },
    #[error("{} is damaged: {cause}", path.display())]
    Damaged { path: PathBuf, cause: String },
    #[error("{} is readable by other users than its owner (mode {mode:03o})", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("other users than its owner may change the files in {} (mode {mode:03o})", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} belongs to another user (uid {uid})", path.display())]
    OtherOwner { path: PathBuf, uid: u32 },
    #[error("{} already contains a certificate authority", path.display())]
    AuthorityExists { path: PathBuf },
    #[error("the certificate is unusable: {cause}")]
    BadCertificate { cause: String },
    #[error("the certificate is of cluster {found}, not of {wanted}")]
    OtherCluster { found: String, wanted: String },
    #[error("{name:?} can't be a client's name")]
    BadClientName { name: String },
    #[error("client {name} already has a certificate")]
    ClientExists { name: String },
    #[error("there is no client {name}")]
    UnknownClient { name: String },
    #[error("the certificate of client/{name} was revoked")]
    RevokedClient { name: String },
    #[error("a certificate of client {name} would already have expired")]
    EndsInPast { name: String },
    #[error("the certificate of {member} is not renewed: an administrator has set its end")]
    NotRenewed { member: String },
    #[error("the certificate of {member} is not due for renewal")]
    NotDueForRenewal { member: String },
    #[error("there are {0} clients on record, which is the limit")]
    TooManyClients(usize),
    #[error("{0} clients have revoked certificates that have not expired, which is the limit")]
    TooManyRevoked(usize),
    #[error("the request for a certificate is unusable: {cause}")]
    BadRequest { cause: String },
    #[error("the join token is unusable: {cause}")]
    BadToken { cause: String },
    #[error("the join token is unknown: it is wrong, was revoked, used up or has expired")]
    UnknownToken,
    #[error("the join token has expired")]
    ExpiredToken,
    #[error("the join token does not allow a {wanted} to join")]
    TokenRole { wanted: &'static str },
    #[error("there are {0} valid join tokens, which is the limit")]
    TooManyTokens(usize),
    #[error("cryptography failed: {0}")]
    Crypto(String),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), cause }
    }

    pub(crate) fn damaged(path: &Path, cause: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_path_buf(), cause: cause.into() }
    }

    pub(crate) fn certificate(cause: impl Into<String>) -> Error {
        Error::BadCertificate { cause: cause.into() }
    }

    pub(crate) fn token(cause: impl Into<String>) -> Error {
        Error::BadToken { cause: cause.into() }
    }

    /// Returns what the user can do about the error.
    pub fn hint(&self) -> String {
        match self {
            Error::Io { cause, .. } => match cause.kind() {
                io::ErrorKind::PermissionDenied => "run as the owner of the file, or as root".into(),
                io::ErrorKind::NotFound => "use the directory of a cluster member".into(),
                _ => "check the disk and the path (dmesg shows the kernel's log)".into(),
            },
            Error::Damaged { path, .. } => {
                format!("restore {} from a backup, or let the machine join again", path.display())
            }
            Error::Exposed { path, .. } => {
                format!("chmod 600 {}; if others had access, let the machine join again", path.display())
            }
            Error::Writable { path, .. } => {
                let shown = path.display();
                format!("chmod go-w {shown}; if others may have changed it, use another directory")
            }
            Error::OtherOwner { path, .. } => {
                format!("chown -R $(id -u) {}, or run as its owner", path.display())
            }
            Error::AuthorityExists { .. } => "use another directory".into(),
            Error::BadCertificate { .. } => "let the machine join again".into(),
            Error::OtherCluster { .. } => "check that the address belongs to the intended cluster".into(),
            Error::BadClientName { .. } => {
                format!("use 1 to {} letters, digits, '.', '_' and '-'", types::MAX_CLIENT_NAME)
            }
            Error::ClientExists { name } => {
                format!("use another name, or revoke its certificate first: weft client revoke {name}")
            }
            Error::UnknownClient { .. } => {
                "weft client list shows all, weft client add adds one (on the management node)".into()
            }
            Error::RevokedClient { name } => {
                format!("weft client add {name}, on the management node, makes a new cluster file")
            }
            Error::EndsInPast { .. } => "set a later time with --expires".into(),
            Error::NotRenewed { member } => {
                let name = member.strip_prefix("client/").unwrap_or("NAME");
                format!(
                    "on the management node: weft client revoke {name}, then weft client add {name} makes a new cluster file"
                )
            }
            Error::NotDueForRenewal { .. } => {
                "it is renewed automatically when a third of its validity is left".into()
            }
            Error::TooManyClients(_) => {
                "revoke clients that are not needed (weft client revoke): they are removed once their certificates expire".into()
            }
            Error::TooManyRevoked(_) => {
                "an export rule also excludes a client: weft export set client:NAME --access none".into()
            }
            Error::BadRequest { .. } => "use the same version of weft on both machines".into(),
            Error::BadToken { .. } => "copy the whole token, from weft-join- to its end".into(),
            Error::UnknownToken | Error::ExpiredToken | Error::TokenRole { .. } => {
                "weft cluster token, on the management node, makes a new one".into()
            }
            Error::TooManyTokens(_) => {
                "revoke some (weft cluster token list shows all), or wait until they expire".into()
            }
            Error::Crypto(_) => "see the log of the service".into(),
        }
    }

    fn errno(&self) -> Errno {
        match self {
            Error::Io { cause, .. } => cause.raw_os_error().map_or(Errno::EIO, Errno::Number),
            Error::Damaged { .. } | Error::Crypto(_) => Errno::EIO,
            Error::AuthorityExists { .. } | Error::ClientExists { .. } => Errno::EEXIST,
            Error::BadClientName { .. }
            | Error::EndsInPast { .. }
            | Error::BadRequest { .. }
            | Error::BadToken { .. } => Errno::EINVAL,
            Error::UnknownClient { .. } => Errno::ENOENT,
            Error::NotRenewed { .. } => Errno::EPERM,
            Error::NotDueForRenewal { .. } => Errno::EAGAIN,
            Error::TooManyTokens(_) => Errno::EBUSY,
            Error::TooManyClients(_) | Error::TooManyRevoked(_) => Errno::ENOSPC,
            Error::Exposed { .. }
            | Error::Writable { .. }
            | Error::OtherOwner { .. }
            | Error::BadCertificate { .. }
            | Error::OtherCluster { .. }
            | Error::RevokedClient { .. }
            | Error::UnknownToken
            | Error::ExpiredToken
            | Error::TokenRole { .. } => Errno::EACCES,
        }
    }
}

impl From<Error> for types::Error {
    fn from(error: Error) -> types::Error {
        types::Error::new(error.errno(), error.to_string()).hint(error.hint())
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Error {
        Error::Crypto(error.to_string())
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Error {
        Error::Crypto(error.to_string())
    }
}

impl From<ring::error::Unspecified> for Error {
    fn from(_: ring::error::Unspecified) -> Error {
        Error::Crypto("no randomness".into())
    }
}
