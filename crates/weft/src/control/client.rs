//! Client side of the control socket.

use super::{
    Answer, LINE_TIMEOUT, MAX_ANSWER_BYTES, Request, Stopping, mount_sockets, public_socket, short_path,
};
use crate::mountpoint::Mounted;
use crate::output::os_error;
use mgmt::{StatePaths, Superblock};
use rustix::process::{PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use types::{Errno, Error, Result};

/// A connection to the process that serves a cluster, for one request.
pub struct Control {
    /// What the process serves, for messages.
    name: String,
    stream: UnixStream,
}

impl Control {
    /// Connects to the process that serves the state directory `dir`; `None` if no process does.
    ///
    /// # Errors
    /// `dir` doesn't hold a cluster.
    pub fn connect(dir: &Path) -> Result<Option<Control>> {
        let paths = StatePaths::new(dir);
        if Superblock::read(&paths.superblock())?.is_none() {
            return Err(mgmt::Error::NoCluster { path: dir.to_path_buf() }.into());
        }
        connect(&paths.socket(), format!("the cluster in {}", dir.display()))
    }

    /// Connects to the process that serves a mount of a cluster; `None` if none is found.
    pub fn of_mount(mountpoint: &Path) -> Result<Option<Control>> {
        for socket in mount_sockets(mountpoint) {
            if let Some(control) = connect(&socket, format!("the mount at {}", mountpoint.display()))? {
                return Ok(Some(control));
            }
        }
        Ok(None)
    }

    /// Connects to the process that serves a mount, also if only its public socket is open to this
    /// user.
    pub fn of_any_mount(mounted: &Mounted) -> Result<Option<Control>> {
        let name = || format!("the mount at {}", mounted.at.display());
        // The process of `weft up` has its socket in the state directory, the source of the mount.
        let own = [StatePaths::new(&mounted.source).socket()];
        let sockets = own.into_iter().chain(mount_sockets(&mounted.at)).chain(public_socket(&mounted.at));
        let mut refused = None;
        for socket in sockets {
            match connect(&socket, name()) {
                Ok(None) => {}
                Ok(Some(control)) => return Ok(Some(control)),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Returns the process at the other end. Its descriptor becomes readable when the process ends.
    ///
    /// # Errors
    /// System errors; `ESRCH` if the process has ended.
    pub fn process(&self) -> io::Result<OwnedFd> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream)?;
        Ok(pidfd_open(peer.pid, PidfdFlags::empty())?)
    }

    /// Sends a request to the cluster in `dir`, which must be running.
    pub fn ask<T: DeserializeOwned>(dir: &Path, request: Request) -> Result<T> {
        match Control::connect(dir)? {
            Some(mut control) => control.exchange(request),
            None => Err(not_running(dir)),
        }
    }

    /// Asks the process to stop, and waits until it has ended.
    pub fn stop(mut self, timeout: Duration) -> Result<Stopping> {
        let stopping: Stopping = self.exchange(Request::Stop)?;
        let waited = self.stream.set_read_timeout(Some(timeout)).and_then(|()| self.stream.read(&mut [0]));
        match waited {
            Ok(_) => Ok(stopping),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(stopping),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let (name, seconds) = (&self.name, timeout.as_secs());
                let message = format!("{name} (process {}) has not stopped within {seconds} s", stopping.pid);
                let hint = "weft down waits again; the log says what it waits for";
                Err(Error::new(Errno::ETIMEDOUT, message).hint(hint))
            }
            Err(e) => Err(self.failed(&e)),
        }
    }

    /// Sends a request and reads the answer. A connection carries one request.
    pub fn exchange<T: DeserializeOwned>(&mut self, request: Request) -> Result<T> {
        let value = self.line(request).map_err(|e| self.failed(&e))?;
        let value = Result::from(value)?;
        serde_json::from_value(value).map_err(|e| self.failed(&e.into()))
    }

    /// Like [`Control::exchange`], with a time-out for the answer.
    pub fn exchange_with_timeout<T: DeserializeOwned>(
        &mut self,
        request: Request,
        timeout: Duration,
    ) -> Result<T> {
        let value = self.line_with_timeout(request, timeout).map_err(|e| self.failed(&e))?;
        serde_json::from_value(Result::from(value)?).map_err(|e| self.failed(&e.into()))
    }

    fn line(&mut self, request: Request) -> io::Result<Answer> {
        self.line_with_timeout(request, LINE_TIMEOUT)
    }

    fn line_with_timeout(&mut self, request: Request, timeout: Duration) -> io::Result<Answer> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(LINE_TIMEOUT))?;
        let mut line = serde_json::to_string(&request)?;
        line.push('\n');
        self.stream.write_all(line.as_bytes())?;
        let mut answer = String::new();
        BufReader::new((&self.stream).take(MAX_ANSWER_BYTES)).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }

    fn failed(&self, cause: &io::Error) -> Error {
        os_error(format_args!("{} doesn't answer", self.name), cause)
            .hint("command and running process may be of different versions; its log may say more")
    }
}

pub(super) fn connect(socket: &Path, name: String) -> Result<Option<Control>> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    match File::open(dir).and_then(|dir| UnixStream::connect(short_path(&dir, socket))) {
        Ok(stream) => Ok(Some(Control { name, stream })),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => {
            Err(os_error(format_args!("can't reach {name}"), &e).hint("run as the user who started it"))
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | ConnectionRefused)
}

/// Returns the error of a command that needs a running cluster.
pub fn not_running(dir: &Path) -> Error {
    let shown = dir.display();
    let (what, how) = match crate::node_config::is_node(dir) {
        true => ("node", format!("weft serve --dir {shown} starts it")),
        false => ("cluster", format!("weft up --dir {shown} --mount MOUNTPOINT starts it")),
    };
    Error::new(Errno::ENOTCONN, format!("the {what} in {shown} is not running")).hint(how)
}

#[cfg(test)]
mod tests {
    use super::super::{Service, start};
    use super::*;
    use serde_json::{Value, json};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    struct Echo(Sender<UnixStream>);

    /// Answers `Targets` only after another request has arrived.
    struct Slow {
        asked: Sender<()>,
        awaited: Mutex<Receiver<()>>,
    }

    impl Service for Slow {
        fn answer(&self, request: Request) -> Result<Value> {
            match request {
                Request::Targets => {
                    let awaited = self.awaited.lock().unwrap().recv_timeout(LINE_TIMEOUT / 2);
                    awaited.map(|()| json!(1)).map_err(|_| Errno::ETIMEDOUT.into())
                }
                _ => Ok(json!(self.asked.send(()).is_ok())),
            }
        }

        fn stop(&self, _: UnixStream) {}
    }

    impl Service for Echo {
        fn answer(&self, request: Request) -> Result<Value> {
            match request {
                Request::Pools => Err(Error::new(Errno::EIO, "no pools").hint("dig")),
                _ => Ok(json!({ "pid": 7 })),
            }
        }

        fn stop(&self, connection: UnixStream) {
            self.0.send(connection).unwrap();
        }
    }

    /// A cluster whose path is longer than a socket address can be.
    fn cluster() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("d".repeat(150));
        drop(mgmt::StateDir::open_or_create(&dir, "weft").unwrap());
        (base, dir)
    }

    #[test]
    fn a_running_cluster_answers_and_one_that_stopped_does_not() {
        let (_base, dir) = cluster();
        assert!(Control::connect(&dir).unwrap().is_none());
        let (stops, stopped) = channel();
        start(&StatePaths::new(&dir).socket(), Arc::new(Echo(stops))).unwrap();
        let answer: Stopping = Control::ask(&dir, Request::Status).unwrap();
        assert_eq!(answer.pid, 7);
        let error = Control::ask::<Value>(&dir, Request::Pools).unwrap_err();
        assert_eq!((error.errno, &*error.hint), (Errno::EIO, "dig"));

        // The connection that requested the stop closes when the process drops it.
        let control = Control::connect(&dir).unwrap().unwrap();
        let waiter = std::thread::spawn(move || control.stop(Duration::from_secs(60)));
        drop(stopped.recv().unwrap());
        assert_eq!(waiter.join().unwrap().unwrap().pid, std::process::id());
    }

    #[test]
    fn connections_do_not_block_each_other() {
        let (_base, dir) = cluster();
        let (asked, awaited) = channel();
        start(&StatePaths::new(&dir).socket(), Arc::new(Slow { asked, awaited: Mutex::new(awaited) }))
            .unwrap();
        // One connection that never sends anything, and one whose answer takes long.
        let _silent = Control::connect(&dir).unwrap().unwrap();
        let mut slow = Control::connect(&dir).unwrap().unwrap();
        let slow = std::thread::spawn(move || slow.exchange::<u64>(Request::Targets));
        assert_eq!(Control::ask::<bool>(&dir, Request::Df), Ok(true));
        assert_eq!(slow.join().unwrap(), Ok(1), "the second question was answered while the first was open");
    }

    #[test]
    fn mounts_are_found_by_their_path() {
        let [one, other] = ["/mnt/a-b", "/mnt/a/b"].map(|path| mount_sockets(Path::new(path)));
        assert!(!one.is_empty() && one.iter().all(|socket| !other.contains(socket)));
        assert!(Control::of_mount(Path::new("/nothing/is/mounted here")).unwrap().is_none());
    }

    #[test]
    fn mounts_with_paths_of_any_length_answer() {
        let base = tempfile::tempdir().unwrap();
        for length in [1_usize, 63, 64, 65, 80, 90, 200, 4000] {
            let mountpoint = format!("/{}", "d/".repeat(length.div_ceil(2)));
            let socket = base.path().join(mount_sockets(Path::new(&mountpoint))[0].file_name().unwrap());
            let (asked, _asks) = channel();
            let (_answer, awaited) = channel();
            start(&socket, Arc::new(Slow { asked, awaited: Mutex::new(awaited) })).unwrap();
            let mut control = connect(&socket, mountpoint).unwrap().expect("it listens");
            assert_eq!(control.exchange::<bool>(Request::Df), Ok(true), "at a path of {length} bytes");
        }
    }

    #[test]
    fn a_directory_without_a_cluster_is_reported() {
        let base = tempfile::tempdir().unwrap();
        let error = Control::ask::<Value>(base.path(), Request::Status).unwrap_err();
        assert!(error.message.contains("there is no weft cluster in"), "{error}");
    }

    #[test]
    fn a_stopped_cluster_is_reported() {
        let (_base, dir) = cluster();
        let error = Control::ask::<Value>(&dir, Request::Status).unwrap_err();
        assert!(error.message.contains("is not running") && error.hint.contains("weft up"), "{error}");
    }
}
