//! Server side of the control socket.

use super::{
    Answer, LINE_TIMEOUT, LogLevel, MAX_REQUEST_BYTES, MeasurementRequest, Request, Stopping, short_path,
};
use crate::output::os_error;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use types::{Errno, Error, Result};

/// The component that answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers every request except [`Request::Stop`], [`Request::Measure`] and [`Request::Log`].
    fn answer(&self, request: Request) -> Result<Value>;
    /// Measures, until done or until the other end of `requester` is closed.
    fn measure(&self, order: MeasurementRequest, requester: UnixStream) -> Result<Value> {
        drop(requester);
        Err(Error::new(Errno::EOPNOTSUPP, format!("this process can't measure {order}"))
            .hint("name the directory of a node or of weft up with --dir"))
    }
    /// Whether callers may stop the process and change its log.
    fn may_administrate(&self) -> bool {
        true
    }
    /// Begins to stop the process; the implementation keeps `connection` open until the end.
    fn stop(&self, connection: UnixStream);
}

/// Permissions of a socket for root and its owner.
const PRIVATE_MODE: u32 = 0o600;

/// Most connections that are served at a time; further ones wait. Each has a thread, since an
/// answer may take as long as management does.
const MAX_CONNECTIONS: usize = 16;

/// Opens the control socket and answers requests, until the process ends. Connections don't wait
/// for each other.
///
/// An existing socket was left behind by a killed process: the caller holds the lock of the
/// directory, so no process listens there.
pub fn start(socket: &Path, service: Arc<dyn Service>) -> Result<()> {
    let listener = listen(socket, PRIVATE_MODE)
        .map_err(|e| os_error(format_args!("can't open {}", socket.display()), &e))?;
    serve_requests(listener, service, |_| Ok(()))
}

/// Serves the connections of a socket on threads of their own. `admit` refuses a connection, or
/// returns what is held until its end.
pub fn serve_requests<T: Send + 'static>(
    listener: UnixListener,
    service: Arc<dyn Service>,
    admit: impl Fn(&UnixStream) -> io::Result<T> + Send + 'static,
) -> Result<()> {
    let places = Arc::new(ConnectionSlots::default());
    let serve = move || {
        for connection in listener.incoming() {
            let admitted = connection.and_then(|stream| Ok((admit(&stream)?, stream)));
            let (held, stream) = match admitted {
                Ok(admitted) => admitted,
                Err(e) => {
                    tracing::debug!("control connection: {e}");
                    continue;
                }
            };
            let place = places.clone().take();
            let service = service.clone();
            let answer = move || {
                if let Err(e) = serve_one(stream, &*service, held) {
                    tracing::debug!("control connection: {e}");
                }
                drop(place);
            };
            if let Err(e) = Builder::new().name("weft-control".into()).spawn(answer) {
                tracing::warn!("a control connection was closed: can't start a thread: {e}");
            }
        }
    };
    let started = Builder::new().name("weft-control".into()).spawn(serve);
    started.map(drop).map_err(|e| os_error("can't start a thread", &e))
}

/// Number of connections that are being served.
#[derive(Default)]
struct ConnectionSlots {
    taken: Mutex<usize>,
    given_back: Condvar,
}

struct ConnectionSlot(Arc<ConnectionSlots>);

impl ConnectionSlots {
    /// Waits for a free place.
    fn take(self: Arc<ConnectionSlots>) -> ConnectionSlot {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.given_back.wait_while(taken, |taken| *taken == MAX_CONNECTIONS);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        ConnectionSlot(self)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.given_back.notify_one();
    }
}

/// Opens a socket with these permissions.
pub fn listen(socket: &Path, mode: u32) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let dir = File::open(socket.parent().unwrap_or(Path::new("/")))?;
    let listener = UnixListener::bind(short_path(&dir, socket))?;
    fs::set_permissions(socket, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Answers one request. `held` is dropped before the answer is sent: who has the answer may connect
/// again at once.
fn serve_one<T>(mut stream: UnixStream, service: &dyn Service, held: T) -> io::Result<()> {
    stream.set_read_timeout(Some(LINE_TIMEOUT))?;
    stream.set_write_timeout(Some(LINE_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_REQUEST_BYTES)).read_line(&mut line)?;
    let request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(e) => {
            let error = Error::new(Errno::EINVAL, format!("unknown request {:?}: {e}", line.trim_end()))
                .hint("command and running process may be of different versions");
            drop(held);
            return send(&mut stream, &error.into());
        }
    };
    if request == Request::Stop && service.may_administrate() {
        let ok = serde_json::to_value(Stopping { pid: std::process::id() })?;
        // The process stops even if the caller has closed the connection.
        let sent = send(&mut stream, &Answer::Ok { ok });
        service.stop(stream);
        return sent;
    }
    let answer = match request {
        Request::Measure { order } => service.measure(order, stream.try_clone()?),
        Request::Log { filter } if service.may_administrate() => change_log_level(filter.as_deref()),
        request => service.answer(request),
    };
    let answer = answer.map_or_else(Answer::from, |ok| Answer::Ok { ok });
    drop(held);
    send(&mut stream, &answer)
}

fn change_log_level(filter: Option<&str>) -> Result<Value> {
    let level = LogLevel { filter: crate::logging::change_filter(filter)? };
    crate::output::to_json(&level)
}

fn send(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}
