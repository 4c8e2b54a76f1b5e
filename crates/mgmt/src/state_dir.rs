//! State directories: their paths, opening and creation.

use crate::checked_file::draft_of;
use crate::error::{Error, Result};
use crate::newest_version;
use crate::space::space_of;
use crate::start_reserve::release_on_full_disk;
use crate::state_lock::StateLock;
use crate::superblock::Superblock;
use identity::require_private_directory;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Free space that a new cluster needs, in bytes: the metadata store's journal and tables, the
/// targets' intent logs, and enough left over to be of use.
pub const MIN_FREE_BYTES: u64 = 256 << 20;

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Paths in a state directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatePaths {
    root: PathBuf,
}

impl StatePaths {
    /// The paths below `root`.
    pub fn new(root: impl Into<PathBuf>) -> StatePaths {
        StatePaths { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Identity of the cluster.
    pub fn superblock(&self) -> PathBuf {
        self.root.join("weft.toml")
    }

    /// Directories of the targets.
    pub fn target_list(&self) -> PathBuf {
        self.root.join("targets.toml")
    }

    /// Configuration of a node in a cluster of several machines; absent in a cluster of one
    /// process.
    pub fn node_config(&self) -> PathBuf {
        self.root.join("node.toml")
    }

    /// The node's certificate and key.
    pub fn identity(&self) -> PathBuf {
        self.root.join("identity")
    }

    /// The cluster's certificate authority, on the management node.
    pub fn authority(&self) -> PathBuf {
        self.root.join("authority")
    }

    /// Issued join tokens, on the management node.
    pub fn tokens(&self) -> PathBuf {
        self.root.join("tokens.toml")
    }

    /// Clients with certificates, valid or revoked, on the management node.
    pub fn clients(&self) -> PathBuf {
        self.root.join("clients.toml")
    }

    /// The capability keys, on the management node.
    pub fn capability_keys(&self) -> PathBuf {
        self.root.join("capability-keys.toml")
    }

    /// The cluster file for clients, on the management node.
    pub fn cluster_file(&self) -> PathBuf {
        self.root.join("client.toml")
    }

    /// Lock that is held while a process serves.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The metadata store.
    pub fn meta(&self) -> PathBuf {
        self.root.join("meta")
    }

    /// Marks that a metadata store was created: without it, a missing store would look like one
    /// that never existed.
    pub fn meta_created_marker(&self) -> PathBuf {
        self.root.join("meta.made")
    }

    /// Daily backups of the metadata.
    pub fn backups(&self) -> PathBuf {
        self.root.join("backups")
    }

    /// Files and folders of the directory that the metadata needs, and that its backups include.
    pub fn backup_paths(&self) -> [PathBuf; 9] {
        [
            self.superblock(),
            self.target_list(),
            self.node_config(),
            self.identity(),
            self.authority(),
            self.tokens(),
            self.clients(),
            self.capability_keys(),
            self.cluster_file(),
        ]
    }

    /// Default directory of target number `number` (from 1).
    pub fn default_target(&self, number: usize) -> PathBuf {
        self.root.join("targets").join(format!("t{number}"))
    }

    /// Control socket of the running process.
    pub fn socket(&self) -> PathBuf {
        self.root.join("control.sock")
    }

    /// Log of a detached process.
    pub fn log(&self) -> PathBuf {
        self.root.join("weft.log")
    }

    /// Space reserve for a start on a full disk.
    pub fn start_reserve(&self) -> PathBuf {
        self.root.join("start-reserve")
    }

    /// The newest version of weft that has opened the directory.
    pub fn newest_version(&self) -> PathBuf {
        self.root.join("newest-version.toml")
    }

    /// Pid of the running process.
    pub fn pid(&self) -> PathBuf {
        self.root.join("weft.pid")
    }
}

/// A state directory that this process serves.
#[derive(Debug)]
pub struct StateDir {
    /// Its paths.
    pub paths: StatePaths,
    /// Identity of the cluster.
    pub superblock: Superblock,
    _lock: StateLock,
}

impl StateDir {
    /// Opens the cluster in `root`, or creates one there if the directory is empty or absent.
    ///
    /// # Errors
    /// A refused directory is left unchanged: a path that isn't a directory, a directory with other
    /// files in it or that other users may change, a superblock that is damaged or from the future,
    /// a directory that a much newer version has opened, a file system with less than
    /// [`MIN_FREE_BYTES`] free (new clusters only), a cluster that another process serves.
    pub fn open_or_create(root: &Path, name: &str) -> Result<StateDir> {
        let root = absolute(root)?;
        let paths = StatePaths::new(&root);
        match fs::metadata(&root) {
            Ok(meta) if !meta.is_dir() => return Err(Error::NotADirectory { path: root }),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                require_space(&root)?;
                make_private(&root).map_err(|e| Error::io("make", &root, e))?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return Err(Error::NotADirectory { path: root });
            }
            Err(e) => return Err(Error::io("open", &root, e)),
        }
        match Superblock::read(&paths.superblock())? {
            Some(superblock) => StateDir::open_existing(paths, superblock),
            None => StateDir::create(paths, name),
        }
    }

    /// Opens an existing cluster.
    ///
    /// # Errors
    /// As [`StateDir::open_or_create`], and a directory without a cluster.
    pub fn open(root: &Path) -> Result<StateDir> {
        let root = absolute(root)?;
        let paths = StatePaths::new(&root);
        let superblock = Superblock::read(&paths.superblock())?;
        let superblock = superblock.ok_or_else(|| Error::NoCluster { path: root.clone() })?;
        StateDir::open_existing(paths, superblock)
    }

    fn open_existing(paths: StatePaths, superblock: Superblock) -> Result<StateDir> {
        newest_version::require_not_too_old(&paths, VERSION)?;
        let _lock = StateLock::take(paths.root(), &paths.lock())?;
        release_on_full_disk(&paths);
        newest_version::record(&paths, VERSION);
        Ok(StateDir { paths, superblock, _lock })
    }

    /// Creates the directory of a member of this cluster. `fill` writes what must exist before the
    /// superblock, which is written last and makes the directory a member's.
    ///
    /// # Errors
    /// Those of [`require_vacant`], and of `fill`: what it has written remains then, to be removed
    /// by hand.
    pub fn create_member<E: From<Error>>(
        root: &Path,
        superblock: &Superblock,
        fill: impl FnOnce(&StatePaths) -> Result<(), E>,
    ) -> Result<StateDir, E> {
        require_vacant(root)?;
        let root = absolute(root)?;
        make_private(&root).map_err(|e| Error::io("make", &root, e))?;
        let paths = StatePaths::new(&root);
        let _lock = StateLock::take(&root, &paths.lock())?;
        fill(&paths)?;
        superblock.create(&paths.superblock())?;
        newest_version::record(&paths, VERSION);
        Ok(StateDir { paths, superblock: superblock.clone(), _lock })
    }

    fn create(paths: StatePaths, name: &str) -> Result<StateDir> {
        require_empty(&paths)?;
        require_space(paths.root())?;
        let lock = StateLock::take(paths.root(), &paths.lock())?;
        // Another process may have created the cluster between the check and the lock.
        let superblock = match Superblock::read(&paths.superblock())? {
            Some(superblock) => superblock,
            None => {
                let superblock = Superblock::random(name);
                superblock.create(&paths.superblock())?;
                superblock
            }
        };
        newest_version::record(&paths, VERSION);
        Ok(StateDir { paths, superblock, _lock: lock })
    }
}

/// Refuses a directory that can't become a member's: one that isn't empty, that other users may
/// change, or that has too little space.
pub fn require_vacant(root: &Path) -> Result<()> {
    let root = absolute(root)?;
    let paths = StatePaths::new(&root);
    match fs::metadata(&root) {
        Ok(meta) if !meta.is_dir() => return Err(Error::NotADirectory { path: root }),
        Ok(_) if paths.superblock().exists() => return Err(Error::Occupied { path: root }),
        Ok(_) => {
            require_private_directory(&root)?;
            require_empty(&paths)?;
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io("open", &root, e)),
    }
    require_space(&root)
}

/// Makes `path` absolute, without accessing it.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("find", path, e))
}

/// Makes a directory that only its owner may enter: it has the files of all users.
fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Refuses a directory with anything but the remains of an interrupted first start or of `mkfs`.
fn require_empty(paths: &StatePaths) -> Result<()> {
    let root = paths.root();
    let ours = [paths.lock(), draft_of(&paths.superblock()), root.join("lost+found")];
    for entry in fs::read_dir(root).map_err(|e| Error::io("list", root, e))? {
        let entry = entry.map_err(|e| Error::io("list", root, e))?;
        if !ours.contains(&entry.path()) {
            let example = entry.file_name().to_string_lossy().into_owned();
            return Err(Error::Foreign { path: root.to_path_buf(), example });
        }
    }
    Ok(())
}

/// Refuses a file system without space for a new cluster; `path` may not exist yet.
fn require_space(path: &Path) -> Result<()> {
    let existing = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let space = space_of(existing).map_err(|e| Error::io("measure", existing, e))?;
    if space.free < MIN_FREE_BYTES {
        let path = path.to_path_buf();
        return Err(Error::TooLittleSpace { path, free: space.free, needed: MIN_FREE_BYTES });
    }
    Ok(())
}
