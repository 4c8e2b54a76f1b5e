//! The public control socket of a mount: every user of the machine may ask it for the state of the
//! cluster, without access to the key of the client.
//!
//! It is in a directory that only root can write to, so that no other user can pose as a mount.
//!
//! Invariants:
//! - it answers only [`Request::is_public`]; everything else, also a stop, is refused before a
//!   service sees it;
//! - the kernel names the user at the other end (`SO_PEERCRED`), and one user has a bounded number
//!   of connections, apart from those of the private socket;
//! - however often users ask, management gets one request of a kind at a time, and one in
//!   [`FRESH`].

use super::server::{listen, serve_requests};
use super::{MeasurementRequest, Request, Service};
use crate::output::os_error;
use rustix::process::{Uid, geteuid};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Directory with the public sockets. It is beside that of the private ones, which other users
/// can't enter.
pub const PUBLIC_DIR: &str = "/run/weft-public";

/// Most connections of one user at a time.
const MAX_USER_CONNECTIONS: usize = 4;

/// Time for which an answer is given again.
const FRESH: Duration = Duration::from_secs(1);

/// The public socket of a mount; its file is removed on drop.
pub struct PublicSocket(PathBuf);

impl PublicSocket {
    /// Opens the socket of a mount. The mount works without it, so a failure is only logged.
    pub fn open(mountpoint: &Path, service: Arc<dyn Service>) -> Option<PublicSocket> {
        // Only root's mounts have one: another user's mount is private to that user.
        if !geteuid().is_root() {
            return None;
        }
        let socket = super::public_path(mountpoint);
        match start_public(&socket, service) {
            Ok(()) => Some(PublicSocket(socket)),
            Err(error) => {
                tracing::warn!(
                    hint = &*error.hint,
                    "only root can use weft health and weft df here: {error}"
                );
                None
            }
        }
    }
}

impl Drop for PublicSocket {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            tracing::debug!("{}: {e}", self.0.display());
        }
    }
}

/// Answers public requests at a socket until the process ends.
///
/// # Errors
/// `EACCES` if another user can write to the directory.
fn start_public(socket: &Path, service: Arc<dyn Service>) -> Result<()> {
    require_own_directory(socket.parent().unwrap_or(Path::new("/")))?;
    let listener =
        listen(socket, 0o666).map_err(|e| os_error(format_args!("can't open {}", socket.display()), &e))?;
    let users = Arc::new(UserConnections::default());
    let service: Arc<dyn Service> = Arc::new(PublicService::new(service));
    serve_requests(listener, service, move |stream| {
        users.clone().admit(rustix::net::sockopt::socket_peercred(stream)?.uid)
    })
}

/// Creates the directory, which only its owner may change and every user may enter.
fn require_own_directory(dir: &Path) -> Result<()> {
    let failed = |e: io::Error| os_error(dir.display(), &e);
    DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    let meta = std::fs::symlink_metadata(dir).map_err(failed)?;
    if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        let message = format!("{} is not a directory that only this user can change", dir.display());
        return Err(
            Error::new(Errno::EACCES, message).hint(format!("rm -r {}, and mount again", dir.display()))
        );
    }
    // The umask of the process may have removed permissions.
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(failed)
}

/// Returns the public socket of a mount, if its directory can be trusted.
pub fn public_socket(mountpoint: &Path) -> Option<PathBuf> {
    let meta = std::fs::symlink_metadata(PUBLIC_DIR).ok()?;
    let is_trusted = meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o022 == 0;
    is_trusted.then(|| super::public_path(mountpoint))
}

/// Answers public requests, and refuses the others.
struct PublicService {
    service: Arc<dyn Service>,
    /// One for each public request that was made: there are few kinds, without parameters.
    answers: Mutex<Vec<(Request, Arc<RecentAnswer>)>>,
}

/// The last answer to a request; locked while the service answers, so that users wait for one
/// request to management.
type RecentAnswer = Mutex<Option<(Instant, Result<Value>)>>;

impl PublicService {
    fn new(service: Arc<dyn Service>) -> PublicService {
        PublicService { service, answers: Mutex::default() }
    }

    fn recent(&self, request: &Request) -> Arc<RecentAnswer> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, recent)) = answers.iter().find(|(known, _)| known == request) {
            return recent.clone();
        }
        let recent = Arc::new(RecentAnswer::default());
        answers.push((request.clone(), recent.clone()));
        recent
    }
}

impl Service for PublicService {
    fn answer(&self, request: Request) -> Result<Value> {
        if !request.is_public() {
            return Err(Error::new(Errno::EACCES, "only root may request this from a mount").hint(
                "run as root; weft health, weft df, weft status and weft target list work for every user",
            ));
        }
        let recent = self.recent(&request);
        let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
        match &*recent {
            Some((at, answer)) if at.elapsed() < FRESH => answer.clone(),
            _ => {
                let answer = self.service.answer(request);
                *recent = Some((Instant::now(), answer.clone()));
                answer
            }
        }
    }

    fn measure(&self, _: MeasurementRequest, _: UnixStream) -> Result<Value> {
        Err(Error::new(Errno::EACCES, "only root may measure").hint("run as root"))
    }

    fn may_administrate(&self) -> bool {
        false
    }

    fn stop(&self, _: UnixStream) {}
}

/// Number of connections of each user.
#[derive(Default)]
struct UserConnections(Mutex<BTreeMap<u32, usize>>);

struct UserConnection {
    users: Arc<UserConnections>,
    user: u32,
}

impl UserConnections {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(self: Arc<UserConnections>, user: Uid) -> io::Result<UserConnection> {
        let user = user.as_raw();
        let mut counts = self.counts();
        let count = counts.entry(user).or_default();
        if *count >= MAX_USER_CONNECTIONS {
            return Err(io::Error::other(format!("user {user} has {count} connections already")));
        }
        *count += 1;
        drop(counts);
        Ok(UserConnection { users: self, user })
    }
}

impl Drop for UserConnection {
    fn drop(&mut self) {
        let mut counts = self.users.counts();
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::connect;
    use super::*;
    use serde_json::json;
    use std::sync::atomic::{AtomicU64, Ordering};
    use wire::MgmtRequest;

    #[derive(Default)]
    struct Counting(AtomicU64);

    impl Service for Counting {
        fn answer(&self, _: Request) -> Result<Value> {
            Ok(json!(self.0.fetch_add(1, Ordering::Relaxed)))
        }

        fn stop(&self, _: UnixStream) {
            panic!("a user stopped the mount");
        }
    }

    fn ask(socket: &Path, request: Request) -> Result<Value> {
        connect(socket, "the mount".into()).unwrap().expect("it listens").exchange(request)
    }

    #[test]
    fn only_public_requests_reach_the_service() {
        let base = tempfile::tempdir().unwrap();
        let socket = base.path().join("public").join("m.sock");
        let service = Arc::new(Counting::default());
        start_public(&socket, service.clone()).unwrap();
        let manage = |request| Request::Manage { request };
        for refused in [
            Request::Stop,
            Request::Net,
            Request::MountHow,
            Request::Session,
            Request::Log { filter: Some("off".into()) },
            Request::Backup { place: None, changes_only: false },
            Request::Measure { order: MeasurementRequest::Cpu { node: types::NodeId(1), milliseconds: 1 } },
            manage(MgmtRequest::ListSessions),
            manage(MgmtRequest::ListTokens),
            manage(MgmtRequest::RemoveTarget { target: types::TargetId(1), accept_loss: true }),
        ] {
            assert_eq!(ask(&socket, refused.clone()).unwrap_err().errno, Errno::EACCES, "{refused:?}");
        }
        assert_eq!(service.0.load(Ordering::Relaxed), 0);
        for allowed in [Request::Status, Request::Df, Request::Targets, manage(MgmtRequest::Health)] {
            ask(&socket, allowed).unwrap();
        }
        // One after the other is never too many at a time.
        for _ in 0..200 {
            ask(&socket, Request::Status).unwrap();
        }
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o666, 0o755));
    }

    #[test]
    fn an_answer_is_given_again_while_it_is_fresh() {
        let service = PublicService::new(Arc::new(Counting::default()));
        let first = service.answer(Request::Df);
        let age = |by: Duration| {
            let recent = service.recent(&Request::Df);
            recent.lock().unwrap().as_mut().unwrap().0 = Instant::now() + by;
        };
        age(Duration::from_secs(3600));
        assert_eq!(service.answer(Request::Df), first);
        assert_ne!(service.answer(Request::Targets), first, "another request");
        assert_eq!(service.answers.lock().unwrap().len(), 2);
        *service.recent(&Request::Df).lock().unwrap() = None;
        assert_ne!(service.answer(Request::Df), first);
    }

    #[test]
    fn a_user_has_a_limited_number_of_connections() {
        let users = Arc::new(UserConnections::default());
        let (one, other) = (Uid::from_raw(1), Uid::from_raw(2));
        let held: Vec<_> = (0..MAX_USER_CONNECTIONS).map(|_| users.clone().admit(one).unwrap()).collect();
        assert!(users.clone().admit(one).is_err());
        drop(users.clone().admit(other).unwrap());
        drop(held);
        assert!(users.clone().admit(one).is_ok());
        assert!(users.counts().is_empty());
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("public");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(require_own_directory(&dir).unwrap_err().errno, Errno::EACCES);
        std::fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        require_own_directory(&dir).unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o755);
    }
}
