//! What whoever leads a load and the clients that make it say to each other: lines of JSON on a
//! client's standard input and output.

use bench::load::{Progress, Seat, Told};
use bench::{Experiment, Through};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The version of what is said.
pub(super) const VERSION: &str = concat!("weft bench agent ", env!("CARGO_PKG_VERSION"));

/// To a client.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// Make a load.
    Begin { seat: Seat, experiment: Experiment, place: PathBuf, through: Through, iterations: u32 },
    /// All clients have come this far.
    Go,
    /// End what is under way.
    Stop,
}

/// From a client.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Word {
    /// It has been started, and is of this version.
    Ready { version: String },
    /// It waits for the others.
    Met,
    /// How far it is.
    Progress { what: String, phase: u32, phases: u32, share: f64, left_s: Option<f64> },
    /// What came of the load.
    Ended(Box<Told>),
}

impl From<&Progress> for Word {
    fn from(progress: &Progress) -> Word {
        let Progress { what, phase, phases, share, left } = progress.clone();
        Word::Progress { what, phase, phases, share, left_s: left.map(|left| left.as_secs_f64()) }
    }
}

impl Word {
    /// How far the one who says it is, if it is that what is said.
    pub(super) fn progress(&self) -> Option<Progress> {
        let Word::Progress { what, phase, phases, share, left_s } = self else { return None };
        let left = left_s.and_then(|left| Duration::try_from_secs_f64(left).ok());
        Some(Progress { what: what.clone(), phase: *phase, phases: *phases, share: *share, left })
    }
}

/// Says one thing.
pub(super) fn say(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
