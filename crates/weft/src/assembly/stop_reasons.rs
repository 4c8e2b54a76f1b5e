//! Reasons for which a process shuts down.

use crate::output::os_error;
use crate::systemd;
use fuse::Session;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use types::{Error, Result};

/// Reason for the shutdown.
pub enum Stop {
    /// The process received this signal.
    Signal(i32),
    /// `weft down`, which waits until this connection closes.
    Command(#[allow(dead_code)] UnixStream),
    /// The mount has ended: a user unmounted it, or it failed.
    Unmounted(Result<()>),
    /// The process must not continue: management evicted its node, for example, or the metadata
    /// store is damaged.
    Fatal(Error),
    /// The start failed halfway.
    Failure,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "{name}"),
                None => write!(f, "signal {signal}"),
            },
            Stop::Command(_) => write!(f, "weft down"),
            Stop::Unmounted(Ok(())) => write!(f, "unmounted"),
            Stop::Unmounted(Err(error)) => write!(f, "the mount has failed: {error}"),
            Stop::Fatal(error) => write!(f, "{error}"),
            Stop::Failure => write!(f, "the start failed"),
        }
    }
}

/// Collects the reasons. Each source sends at most a few, so the channel needs no bound.
pub struct StopReasons {
    sender: Sender<Stop>,
    receiver: Receiver<Stop>,
}

impl StopReasons {
    /// Catches the signals that ask a process to end, from now until the process ends.
    pub fn listen() -> Result<StopReasons> {
        let (sender, receiver) = channel();
        let mut signals =
            Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|e| os_error("can't catch signals", &e))?;
        let stops = sender.clone();
        let forward = move || {
            for signal in signals.forever() {
                // The channel has no receiver once the shutdown has begun: the first reason is
                // enough.
                let _ = stops.send(Stop::Signal(signal));
            }
        };
        Builder::new()
            .name("weft-signals".into())
            .spawn(forward)
            .map_err(|e| os_error("can't start a thread", &e))?;
        Ok(StopReasons { sender, receiver })
    }

    /// Makes the end of the mount a reason.
    pub fn watch(&self, session: Arc<Session>) -> Result<()> {
        let stops = self.sender();
        let wait = move || {
            // The channel has no receiver if the shutdown has begun for another reason.
            let _ = stops.send(Stop::Unmounted(session.wait()));
        };
        let started = Builder::new().name("weft-unmount".into()).spawn(wait);
        started.map(drop).map_err(|e| os_error("can't start a thread", &e))
    }

    /// Returns a sender for another source of reasons.
    pub fn sender(&self) -> Sender<Stop> {
        self.sender.clone()
    }

    /// Waits for the first reason, and reports it to the service manager.
    pub fn wait(&self) -> Stop {
        let stop = self.receiver.recv().expect("the receiver's owner holds a sender too");
        systemd::notify_stopping(&stop);
        stop
    }
}
