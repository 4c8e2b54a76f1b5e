//! Sockets of mounts whose processes were killed.
//!
//! A process that ends removes its sockets. Those of a killed one remain, and are removed by its
//! companion process ([`crate::mount_watch`]), by the next `weft mount` or `weft up`, or by
//! `weft umount`.
//!
//! Invariant: a socket is opened only while the folder of the private sockets is locked
//! ([`lock_and_clear`]). So a socket that refuses connections has no process.

use super::private_folders;
use super::public::PUBLIC_DIR;
use rustix::io::Errno as Os;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// Creates the folder of the private sockets, for a process that opens some. Without it the mount
/// works, so a failure is only logged.
pub fn make_private_folder() {
    let make = |folder: &PathBuf| {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok()
            && identity::require_private_directory(folder).is_ok()
    };
    if !private_folders().iter().any(make) {
        tracing::debug!("no folder for the sockets of mounts can be created");
    }
}

/// Locks the folder of the private sockets, and removes the sockets of killed processes. Holds the
/// lock as long as the returned file is open; `None` if this user has no such folder.
///
/// The folder of the public sockets has no lock: any user could hold it.
pub fn lock_and_clear() -> Option<File> {
    let folders = private_folders();
    let folder = folders.iter().find_map(|folder| File::open(folder).ok())?;
    if let Err(e) = folder.lock() {
        tracing::debug!("the folder of control sockets can't be locked: {e}");
        return None;
    }
    for folder in folders.iter().map(PathBuf::as_path).chain([Path::new(PUBLIC_DIR)]) {
        clear(folder);
    }
    Some(folder)
}

/// Removes the sockets in a folder that no process listens on.
fn clear(folder: &Path) {
    let Ok(dir) = File::open(folder) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if !is_socket || !is_refused(&super::short_path(&dir, &path)) {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => tracing::info!("removed {}, which a killed process left behind", path.display()),
            Err(e) => tracing::debug!("{}: {e}", path.display()),
        }
    }
}

/// Returns whether no process listens on a socket. Never waits: a stopped process may have a full
/// queue of connections.
fn is_refused(socket: &Path) -> bool {
    let attempt = || -> rustix::io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&probe, &SocketAddrUnix::new(socket)?)
    };
    attempt() == Err(Os::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_sockets_without_a_process_are_removed() -> io::Result<()> {
        let base = tempfile::tempdir()?;
        let [stale, served, file] = ["mnt-a.sock", "mnt-b.sock", "c.sock"].map(|name| base.path().join(name));
        drop(UnixListener::bind(&stale)?);
        let _listener = UnixListener::bind(&served)?;
        fs::write(&file, "")?;
        clear(base.path());
        assert_eq!([&stale, &served, &file].map(|path| path.exists()), [false, true, true]);
        clear(&base.path().join("absent"));
        Ok(())
    }

    #[test]
    fn a_full_queue_of_connections_is_a_process() -> io::Result<()> {
        let base = tempfile::tempdir()?;
        let path = base.path().join("full.sock");
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
        rustix::net::listen(&socket, 0)?;
        let connect_once = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&client, &SocketAddrUnix::new(&path)?).map(|()| client)
        };
        let mut held = Vec::new();
        let full = loop {
            match connect_once() {
                Ok(client) => held.push(client),
                Err(e) => break e,
            }
        };
        assert_eq!(full, Os::AGAIN);
        clear(base.path());
        assert!(path.exists());
        Ok(())
    }
}
