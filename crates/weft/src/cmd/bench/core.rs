//! File access through the native client core: a session of this process, as a mount has one,
//! without kernel and FUSE.
//!
//! The threads of a load are tasks on cores, one core on each CPU, as in a mount. The core caches
//! no file content (see `client`), so every read comes from the storage services. Each directory is
//! looked up once, as by a kernel that caches names.

use super::cluster::MeasuredCluster;
use crate::assembly::UnmountedClient;
use crate::control::{Control, MountSettings, Request};
use crate::node_config::ClusterFile;
use crate::output::os_error;
use bench::load::{Backend, BackendFile, Cores, LoadResult, Observer, run_on};
use bench::{Caching, Experiment, Through};
use client::{File, ReadOptions, SessionFailover, WriteOptions};
use rt::IoBuf;
use rustix::process::{getegid, geteuid};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use types::{Credentials, Errno, Error, HashMap, InodeId, Result, mode};

/// Most bytes per call of the core: what the kernel requests from a mount at a time.
const MAX_TRANSFER: usize = 1 << 20;

/// Permissions that others don't get on new files and directories.
const UMASK: u32 = 0o022;

/// Flags of `open(2)`.
const O_RDONLY: u32 = 0;
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;

/// A session of this process for loads on one directory.
pub(super) struct CoreLoad {
    client: UnmountedClient,
    cores: Arc<Cores>,
    place: CorePlace,
}

impl CoreLoad {
    /// Begins a session with the cluster of the mount that contains a directory, using its cluster
    /// file or another one.
    ///
    /// # Errors
    /// The directory isn't on a mount of a cluster that clients can reach; the file belongs to
    /// another cluster; the cluster doesn't answer.
    pub(super) fn start(dir: &Path, file: Option<&Path>) -> Result<CoreLoad> {
        let how = mount_settings(dir)?;
        let file = cluster_file(&how, file)?;
        let found = std::fs::metadata(dir).map_err(|e| os_error(dir.display(), &e))?;
        let client = UnmountedClient::start(&how, file)?;
        let cores = match Cores::start() {
            Ok(cores) => Arc::new(cores),
            Err(error) => {
                client.end()?;
                return Err(error);
            }
        };
        let who = Credentials { uid: geteuid().as_raw(), gid: getegid().as_raw(), pid: std::process::id() };
        let inner = Inner {
            sessions: client.sessions().clone(),
            credentials: who,
            dir: dir.to_path_buf(),
            ino: InodeId(found.ino()),
            directories: Mutex::default(),
        };
        let place = CorePlace { cores: cores.clone(), inner: Arc::new(inner) };
        Ok(CoreLoad { client, cores, place })
    }

    /// Runs the load of an experiment on the directory.
    ///
    /// # Errors
    /// Those of [`bench::load::run`].
    pub(super) fn run(
        &self,
        experiment: &Experiment,
        iterations: u32,
        watch: &dyn Observer,
    ) -> Result<LoadResult> {
        run_on(&self.place, experiment, &self.place.inner.dir, iterations, watch)
    }

    /// Ends the session.
    pub(super) fn end(self) -> Result<()> {
        self.cores.end();
        self.client.end()
    }
}

/// Returns how the mount that contains a directory was made.
fn mount_settings(dir: &Path) -> Result<MountSettings> {
    let shown = dir.display();
    let refused = |what: &str, hint: &str| {
        let text = format!("{shown} can't be measured through the client core: {what}");
        Err(Error::new(Errno::EOPNOTSUPP, text).hint(hint.to_string()))
    };
    match MeasuredCluster::of(dir)? {
        None => refused(
            "it is not on a weft file system",
            "name a directory in a weft mount, or use --through mount",
        ),
        Some(MeasuredCluster::Local(_)) => refused(
            "its services are in the process of weft up, where no other client reaches them",
            "use --through mount, or a cluster of weft serve (docs/guide/cluster.md)",
        ),
        Some(MeasuredCluster::Mount(mountpoint)) => match Control::of_mount(&mountpoint)? {
            Some(mut control) => control.exchange(Request::MountHow),
            None => {
                let text = format!("the mount at {} has no control socket", mountpoint.display());
                Err(Error::new(Errno::ENOTCONN, text).hint("its log says why"))
            }
        },
    }
}

/// Reads the given cluster file, or that of the mount.
fn cluster_file(how: &MountSettings, named: Option<&Path>) -> Result<ClusterFile> {
    let path = named.unwrap_or(&how.file);
    let file = ClusterFile::read(path).map_err(|error| match named {
        Some(_) => error,
        None => error.hint("name one of the same cluster with --cluster"),
    })?;
    if file.cluster == how.cluster {
        return Ok(file);
    }
    let text = format!(
        "cluster file {} is of cluster {} ({}), and DIR is on a mount of cluster {}",
        path.display(),
        file.cluster,
        file.name,
        how.cluster
    );
    let hint = format!("leave --cluster out, or name {}", how.file.display());
    Err(Error::new(Errno::EINVAL, text).hint(if named.is_some() {
        hint
    } else {
        "mount again with this file".into()
    }))
}

/// Locks a mutex; no holder panics.
fn lock_map<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// File access of a load through the core.
#[derive(Clone)]
struct CorePlace {
    cores: Arc<Cores>,
    inner: Arc<Inner>,
}

struct Inner {
    sessions: Arc<SessionFailover>,
    credentials: Credentials,
    /// The measured directory, as spelled in paths.
    dir: PathBuf,
    ino: InodeId,
    /// Known directories below it. Their references end with the session.
    directories: Mutex<HashMap<PathBuf, InodeId>>,
}

impl Inner {
    /// Returns the parent directory and the name of a path.
    async fn locate<'a>(&self, path: &'a Path) -> Result<(InodeId, &'a [u8])> {
        let inside = path
            .strip_prefix(&self.dir)
            .ok()
            .and_then(|inside| Some((inside.parent()?, inside.file_name()?)));
        let Some((parent, name)) = inside else {
            return Err(Error::new(Errno::EINVAL, "it is not below the directory that is measured"));
        };
        Ok((self.directory(parent).await?, name.as_bytes()))
    }

    async fn directory(&self, inside: &Path) -> Result<InodeId> {
        let known = |path: &Path| lock_map(&self.directories).get(path).copied();
        if inside.as_os_str().is_empty() {
            return Ok(self.ino);
        }
        if let Some(ino) = known(inside) {
            return Ok(ino);
        }
        let (mut ino, mut so_far) = (self.ino, PathBuf::new());
        for name in inside.iter() {
            so_far.push(name);
            ino = match known(&so_far) {
                Some(ino) => ino,
                None => {
                    let found = self.sessions.lookup(self.credentials, ino, name.as_bytes()).await?.ino;
                    lock_map(&self.directories).insert(so_far.clone(), found);
                    found
                }
            };
        }
        Ok(ino)
    }

    /// Opens or creates a file by name.
    async fn open(
        self: &Arc<Self>,
        parent: InodeId,
        name: &[u8],
        flags: u32,
        is_direct: bool,
    ) -> Result<CoreFile> {
        let (ino, opened) = match flags & O_CREAT {
            0 => {
                let ino = self.sessions.lookup(self.credentials, parent, name).await?.ino;
                (ino, self.sessions.open(self.credentials, ino, flags).await)
            }
            _ => {
                let made =
                    self.sessions.create(self.credentials, parent, name, mode::S_IFREG | 0o666, UMASK, flags);
                let (known, file) = made.await?;
                (known.ino, Ok(file))
            }
        };
        match opened {
            Ok(file) => Ok(CoreFile { inner: self.clone(), file, is_direct }),
            Err(error) => {
                self.sessions.forget(ino, 1);
                Err(error)
            }
        }
    }
}

impl Backend for CorePlace {
    type File = CoreFile;

    const ACCESS_PATH: Through = Through::Core;

    fn start<F: Future<Output = ()> + 'static>(
        &self,
        number: u32,
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Result<()> {
        self.cores.start_task(number, body);
        Ok(())
    }

    async fn open(&self, path: &Path, is_write: bool, caching: Caching) -> Result<CoreFile> {
        let (parent, name) = self.inner.locate(path).await?;
        let flags = if is_write { O_RDWR | O_CREAT } else { O_RDONLY };
        self.inner.open(parent, name, flags, caching == Caching::Direct).await
    }

    /// The core caches no file content.
    async fn drop_cache(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    async fn make_directory(&self, path: &Path) -> Result<()> {
        let (parent, name) = self.inner.locate(path).await?;
        let Inner { sessions, credentials: who, dir, directories, .. } = &*self.inner;
        let made = sessions.mkdir(*who, parent, name, mode::S_IFDIR | 0o777, UMASK).await?;
        let inside = path.strip_prefix(dir).unwrap_or(path);
        lock_map(directories).insert(inside.to_path_buf(), made.ino);
        Ok(())
    }

    async fn create(&self, path: &Path, content: &IoBuf) -> Result<()> {
        let (parent, name) = self.inner.locate(path).await?;
        let file = self.inner.open(parent, name, O_WRONLY | O_CREAT | O_EXCL, false).await?;
        let written = file.write(content, 0).await;
        file.close().await;
        written
    }

    async fn stat(&self, path: &Path) -> Result<u64> {
        let (parent, name) = self.inner.locate(path).await?;
        let Inner { sessions, credentials: who, .. } = &*self.inner;
        let found = sessions.lookup(*who, parent, name).await?;
        sessions.forget(found.ino, 1);
        Ok(found.size)
    }

    async fn read_file(&self, path: &Path, buffer: &mut IoBuf) -> Result<u64> {
        let (parent, name) = self.inner.locate(path).await?;
        let file = self.inner.open(parent, name, O_RDONLY, false).await?;
        let read = file.read(buffer, 0).await;
        file.close().await;
        read.map(|length| length as u64)
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        let (parent, name) = self.inner.locate(path).await?;
        self.inner.sessions.unlink(self.inner.credentials, parent, name).await
    }
}

/// A file that is open in the core.
struct CoreFile {
    inner: Arc<Inner>,
    file: File,
    is_direct: bool,
}

impl CoreFile {
    async fn write(&self, buffer: &IoBuf, offset: u64) -> Result<()> {
        let how = WriteOptions { direct: self.is_direct, ..WriteOptions::default() };
        for piece in pieces(buffer) {
            self.file.write(offset + piece.start as u64, buffer.slice(piece), how).await?;
        }
        Ok(())
    }

    /// Returns the number of bytes read before the end of the file.
    async fn read(&self, buffer: &IoBuf, offset: u64) -> Result<usize> {
        let how = ReadOptions { direct: self.is_direct, ..ReadOptions::default() };
        let mut done = 0;
        for piece in pieces(buffer) {
            let (start, length) = (piece.start as u64, piece.len());
            let read = self.file.read(offset + start, buffer.slice(piece), how).await?;
            done += read;
            if read < length {
                break;
            }
        }
        Ok(done)
    }
}

/// Splits a buffer into pieces of at most one transfer.
fn pieces(buffer: &IoBuf) -> impl Iterator<Item = std::ops::Range<usize>> {
    let length = buffer.len();
    (0..length).step_by(MAX_TRANSFER).map(move |start| start..length.min(start + MAX_TRANSFER))
}

impl BackendFile for CoreFile {
    async fn transfer(&self, buffer: &mut IoBuf, offset: u64, is_write: bool) -> Result<()> {
        // A transfer without a request (a known inline file) never waits, and would block all other
        // tasks of the core.
        rt::yield_now().await;
        if is_write {
            return self.write(buffer, offset).await;
        }
        match self.read(buffer, offset).await? {
            read if read == buffer.len() => Ok(()),
            read => {
                Err(Error::new(Errno::EIO, format!("the file ends after {read} of {} bytes", buffer.len())))
            }
        }
    }

    async fn sync(&self) -> Result<()> {
        self.file.fsync(false).await
    }

    async fn close(&self) {
        self.file.release().await;
        self.inner.sessions.forget(self.file.ino(), 1);
    }
}
