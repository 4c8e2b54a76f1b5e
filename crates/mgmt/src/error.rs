//! Errors of management, with hints.

use kv::KvError;
use std::io;
use std::path::{Path, PathBuf};
use types::Errno;

/// Result with management's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a state directory or the map can't be used. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} is not a weft state directory and not empty: it holds {example:?}", path.display())]
    Foreign { path: PathBuf, example: String },
    #[error("{} already holds a member of a weft cluster", path.display())]
    Occupied { path: PathBuf },
    #[error("there is no weft cluster in {}", path.display())]
    NoCluster { path: PathBuf },
    #[error("{} has format {found}; this weft knows formats up to {known}", path.display())]
    NewerFormat { path: PathBuf, found: u64, known: u64 },
    #[error(
        "{} was opened by weft {newest}; this is weft {ours}, which is older by more than one minor version",
        path.display()
    )]
    NewerVersion { path: PathBuf, newest: String, ours: String },
    #[error("superblock {} is damaged: {cause}", path.display())]
    CorruptSuperblock { path: PathBuf, cause: String },
    #[error("{} has {} MiB free; a new cluster needs {} MiB", path.display(), free >> 20, needed >> 20)]
    TooLittleSpace { path: PathBuf, free: u64, needed: u64 },
    #[error("the cluster in {} is already served by process {pid}", path.display())]
    InUse { path: PathBuf, pid: String },
    #[error("the target in {} is already served by process {pid}", path.display())]
    TargetInUse { path: PathBuf, pid: String },
    #[error("the cluster in {} has {have} targets, not {asked}", path.display())]
    TargetCount { path: PathBuf, have: usize, asked: usize },
    #[error("{} is not a target of the cluster in {}", target.display(), path.display())]
    UnknownTarget { path: PathBuf, target: PathBuf },
    #[error("target {} is given twice", target.display())]
    DuplicateTarget { target: PathBuf },
    #[error("{} can't become a target: it is not empty, it holds {example:?}", path.display())]
    ForeignTarget { path: PathBuf, example: String },
    #[error("{} can't become a target: it is on {file_system}, not on the file system of a local disk", path.display())]
    UnsuitableTarget { path: PathBuf, file_system: String },
    #[error("list of targets {} is damaged: {cause}", path.display())]
    CorruptTargetList { path: PathBuf, cause: String },
    #[error("the cluster map in {} is damaged: {cause}", path.display())]
    CorruptMap { path: PathBuf, cause: String },
    #[error("can't {action} {}: {cause}", path.display())]
    Io { action: &'static str, path: PathBuf, cause: io::Error },
    #[error(transparent)]
    NotPrivate(#[from] identity::Error),
    #[error(transparent)]
    Store(#[from] KvError),
}

impl Error {
    /// An error of a failed system call, with its object.
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), cause }
    }

    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            Error::NotADirectory { .. } => {
                "name a directory with --dir, or a path that doesn't exist yet".into()
            }
            Error::Foreign { .. } => {
                "name an empty directory, or a path that doesn't exist yet, with --dir".into()
            }
            Error::NoCluster { path } => {
                format!("weft up --dir {} --mount MOUNTPOINT creates one", path.display())
            }
            Error::Occupied { path } => {
                format!(
                    "weft serve --dir {} runs it; name another directory to create a new one",
                    path.display()
                )
            }
            Error::NewerFormat { .. } => "use the weft version that wrote it, or a later one".into(),
            Error::NewerVersion { newest, ours, .. } => format!(
                "install weft {newest}: weft {ours} could lose what the newer version has stored; to go back, restore a backup of \
                 the metadata from before the upgrade"
            ),
            Error::CorruptSuperblock { path, .. } => format!(
                "restore {} from a backup; every target's superblock names the cluster it belongs to",
                path.display()
            ),
            Error::TooLittleSpace { .. } => {
                "free some space there, or name a directory on another file system with --dir".into()
            }
            Error::InUse { path, .. } => {
                format!("weft status --dir {0} shows it, weft down --dir {0} stops it", path.display())
            }
            Error::TargetInUse { .. } => {
                "no two nodes can serve one directory: name another, or stop that process first".into()
            }
            Error::TargetCount { have, .. } => {
                format!(
                    "omit --targets, or use --targets {have}: the number is fixed when a cluster is created"
                )
            }
            Error::UnknownTarget { .. } => {
                "omit --target-dir: the targets are fixed when a cluster is created".into()
            }
            Error::DuplicateTarget { .. } => "give every target a directory of its own".into(),
            Error::ForeignTarget { .. } => {
                "a target is an empty directory, or a path that doesn't exist yet: name another one".into()
            }
            Error::UnsuitableTarget { .. } => {
                "name a directory on xfs or ext4; weft doctor --target-dir DIR checks one".into()
            }
            Error::CorruptTargetList { path, .. } => {
                format!("restore {} from a backup", path.display())
            }
            Error::CorruptMap { .. } => "restore the state directory's meta folder from a backup".into(),
            Error::Io { cause, .. } => match cause.kind() {
                io::ErrorKind::PermissionDenied => "run as the owner of the directory, or as root".into(),
                io::ErrorKind::StorageFull => "free some space there".into(),
                _ => "check the disk and the path (dmesg shows kernel messages)".into(),
            },
            Error::NotPrivate(cause) => cause.hint(),
            Error::Store(KvError::NoSpace { .. }) => "free some space there".into(),
            Error::Store(_) => {
                "check the disk below the state directory (dmesg shows kernel messages)".into()
            }
        }
    }

    fn errno(&self) -> Errno {
        match self {
            Error::NotADirectory { .. } => Errno::ENOTDIR,
            Error::Foreign { .. } | Error::ForeignTarget { .. } => Errno::ENOTEMPTY,
            Error::NoCluster { .. } => Errno::ENOENT,
            Error::TooLittleSpace { .. } | Error::Store(KvError::NoSpace { .. }) => Errno::ENOSPC,
            Error::InUse { .. } | Error::TargetInUse { .. } => Errno::EBUSY,
            Error::NotPrivate(_) => Errno::EACCES,
            Error::NewerVersion { .. } => Errno::EPROTO,
            Error::UnsuitableTarget { .. } => Errno::EOPNOTSUPP,
            Error::Occupied { .. } => Errno::EEXIST,
            Error::TargetCount { .. }
            | Error::UnknownTarget { .. }
            | Error::DuplicateTarget { .. }
            | Error::NewerFormat { .. } => Errno::EINVAL,
            Error::Io { cause, .. } => cause.raw_os_error().map_or(Errno::EIO, Errno::Number),
            Error::CorruptSuperblock { .. }
            | Error::CorruptTargetList { .. }
            | Error::CorruptMap { .. }
            | Error::Store(_) => Errno::EIO,
        }
    }
}

impl From<Error> for types::Error {
    fn from(error: Error) -> types::Error {
        types::Error::new(error.errno(), error.to_string()).hint(error.hint())
    }
}
