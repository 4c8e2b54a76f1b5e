//! The protocol between the coordinator of a load and its clients: lines of JSON on a client's
//! standard input and output.

use bench::load::{ClientRank, ClientReport, Progress};
use bench::{Experiment, Through};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Version of the protocol.
pub(super) const VERSION: &str = concat!("weft bench agent ", env!("CARGO_PKG_VERSION"));

/// A message to a client.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CoordinatorMessage {
    /// Run a load.
    Begin { seat: ClientRank, experiment: Experiment, place: PathBuf, through: Through, iterations: u32 },
    /// All clients have reached the barrier.
    Go,
    /// Stop the running load.
    Stop,
}

/// A message from a client.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClientMessage {
    /// The client has started, with this version.
    Ready { version: String },
    /// The client waits at a barrier.
    Met,
    /// Progress of the client.
    Progress { what: String, phase: u32, phases: u32, share: f64, left_s: Option<f64> },
    /// Result of the load.
    Ended(Box<ClientReport>),
}

impl From<&Progress> for ClientMessage {
    fn from(progress: &Progress) -> ClientMessage {
        let Progress { what, phase, phases, share, left } = progress.clone();
        ClientMessage::Progress { what, phase, phases, share, left_s: left.map(|left| left.as_secs_f64()) }
    }
}

impl ClientMessage {
    /// Returns the progress, if the message is one.
    pub(super) fn progress(&self) -> Option<Progress> {
        let ClientMessage::Progress { what, phase, phases, share, left_s } = self else { return None };
        let left = left_s.and_then(|left| Duration::try_from_secs_f64(left).ok());
        Some(Progress { what: what.clone(), phase: *phase, phases: *phases, share: *share, left })
    }
}

/// Sends one message.
pub(super) fn send_message(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
