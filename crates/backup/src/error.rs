//! Errors of backups.

use kv::KvError;
use std::io;
use std::path::{Path, PathBuf};
use types::Errno;

/// Result with the error of backups.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a backup can't be made or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{} is not a backup of a metadata store: {cause}", path.display())]
    NotABackup { path: PathBuf, cause: String },
    #[error("backup {} is damaged: {cause}", path.display())]
    Damaged { path: PathBuf, cause: String },
    #[error("backup {} has format {found}; this version of weft supports formats up to {known}", path.display())]
    UnsupportedFormat { path: PathBuf, found: u64, known: u64 },
    #[error("backup {} is incremental and needs backup {base}, which is not in {}", path.display(), folder.display())]
    MissingBase { path: PathBuf, base: String, folder: PathBuf },
    #[error("backup {} is of cluster {found}, not of {wanted}", path.display())]
    WrongCluster { path: PathBuf, found: String, wanted: String },
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("can't {action} {}: {cause}", path.display())]
    Io { action: &'static str, path: PathBuf, cause: io::Error },
    #[error("{0}")]
    Record(types::Error),
    #[error(transparent)]
    Store(#[from] KvError),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), cause }
    }

    pub(crate) fn damaged(path: &Path, cause: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_path_buf(), cause: cause.into() }
    }

    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Error::NotABackup { .. } => "weft meta backups list shows the existing backups".into(),
            Error::Damaged { .. } => "use another backup: weft meta backups list shows all".into(),
            Error::UnsupportedFormat { .. } => "use the version of weft that made it, or a newer one".into(),
            Error::MissingBase { .. } => {
                "put its base backups into the same directory, or use a full backup".into()
            }
            Error::WrongCluster { .. } => "set --dir to the state directory of the backup's cluster".into(),
            Error::Exists { .. } => {
                "give another file, or a directory, in which the backup gets a name of its own".into()
            }
            Error::Io { cause, .. } => match cause.kind() {
                io::ErrorKind::PermissionDenied => "run as the owner of the cluster, or as root".into(),
                io::ErrorKind::IsADirectory => "give one of the backups in it".into(),
                io::ErrorKind::StorageFull => "free some space there, or give another directory".into(),
                _ => "check the path and its disk".into(),
            },
            Error::Record(error) => error.hint.to_string(),
            Error::Store(_) => "check the disk of the metadata store (dmesg shows kernel messages)".into(),
        }
    }

    fn errno(&self) -> Errno {
        match self {
            Error::NotABackup { .. } | Error::UnsupportedFormat { .. } | Error::WrongCluster { .. } => {
                Errno::EINVAL
            }
            Error::Damaged { .. } | Error::Store(_) => Errno::EIO,
            Error::MissingBase { .. } => Errno::ENOENT,
            Error::Exists { .. } => Errno::EEXIST,
            Error::Io { cause, .. } => cause.raw_os_error().map_or(Errno::EIO, Errno::Number),
            Error::Record(error) => error.errno,
        }
    }
}

impl From<Error> for types::Error {
    fn from(error: Error) -> types::Error {
        let hint = error.hint();
        types::Error::new(error.errno(), error.to_string()).hint(hint)
    }
}
