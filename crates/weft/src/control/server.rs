//! The serving end of the control socket.

use super::{Answer, LINE_TIMEOUT, MAX_LINE_BYTES, Request, Stopping, short_path};
use crate::output::os_error;
use mgmt::StatePaths;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use types::{Errno, Error, Result};

/// What answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers everything but [`Request::Stop`].
    fn answer(&self, request: Request) -> Result<Value>;
    /// Begins to stop the process; `connection` is to be held until its end.
    fn stop(&self, connection: UnixStream);
}

/// Opens the control socket and answers on a thread of its own, one connection after another, until the
/// process ends.
pub fn start(paths: &StatePaths, service: Arc<dyn Service>) -> Result<()> {
    let socket = paths.socket();
    let listener =
        listen(paths).map_err(|e| os_error(format_args!("can't open {}", socket.display()), &e))?;
    let serve = move || {
        for connection in listener.incoming() {
            let served = connection.and_then(|stream| serve_one(stream, &*service));
            if let Err(e) = served {
                tracing::debug!("control connection: {e}");
            }
        }
    };
    let started = std::thread::Builder::new().name("weft-control".into()).spawn(serve);
    started.map(drop).map_err(|e| os_error("can't start a thread", &e))
}

fn listen(paths: &StatePaths) -> io::Result<UnixListener> {
    let socket = paths.socket();
    // Left behind by a killed process: we hold the lock, so nobody listens there.
    match fs::remove_file(&socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(short_path(&File::open(paths.root())?, &socket))?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve_one(mut stream: UnixStream, service: &dyn Service) -> io::Result<()> {
    stream.set_read_timeout(Some(LINE_TIMEOUT))?;
    stream.set_write_timeout(Some(LINE_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_LINE_BYTES)).read_line(&mut line)?;
    let request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(e) => {
            let error = Error::new(Errno::EINVAL, format!("unknown request {:?}: {e}", line.trim_end()))
                .hint("command and running process may be of different versions");
            return send(&mut stream, &error.into());
        }
    };
    if request == Request::Stop {
        let ok = serde_json::to_value(Stopping { pid: std::process::id() })?;
        // The stop happens even if the one who asked has gone.
        let sent = send(&mut stream, &Answer::Ok { ok });
        service.stop(stream);
        return sent;
    }
    let answer = service.answer(request).map_or_else(Answer::from, |ok| Answer::Ok { ok });
    send(&mut stream, &answer)
}

fn send(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}
