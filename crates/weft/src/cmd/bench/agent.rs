//! `weft bench agent`: one of several clients that generate a load together.

use super::core::CoreLoad;
use super::protocol::{ClientMessage, CoordinatorMessage, VERSION, send_message};
use crate::output::os_error;
use bench::load::{self, ClientRank, ClientReport, LoadResult, Observer, Progress};
use bench::{Experiment, Through};
use std::fs;
use std::io::{self, BufRead, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::Result;

/// Attempts to remove the directory of a load after its coordinator has disconnected: other clients
/// may still work there.
const REMOVAL_ATTEMPTS: u32 = 20;
const REMOVAL_RETRY_DELAY: Duration = Duration::from_millis(250);

/// Orders received so far.
#[derive(Default)]
struct AgentState {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    request: Option<LoadRequest>,
    /// Number of barriers that all clients have reached.
    barriers_passed: u64,
    is_stopped: bool,
    /// Whether the coordinator has disconnected.
    is_disconnected: bool,
}

struct LoadRequest {
    rank: ClientRank,
    experiment: Experiment,
    place: PathBuf,
    through: Through,
    iterations: u32,
}

impl LoadRequest {
    fn run(&self, watch: &dyn Observer) -> Result<LoadResult> {
        if self.through == Through::Mount {
            return load::run(&self.experiment, &self.place, self.iterations, watch);
        }
        let core = CoreLoad::start(&self.place, None)?;
        let loaded = core.run(&self.experiment, self.iterations, watch);
        core.end().and(loaded)
    }
}

/// Runs loads as ordered on standard input, until that ends.
pub(super) fn run() -> Result<()> {
    let orders: &'static AgentState = Box::leak(Box::default());
    std::thread::spawn(|| orders.receive_orders());
    send(&ClientMessage::Ready { version: VERSION.into() })?;
    while let Some(begin) = orders.next() {
        let client =
            Client { rank: begin.rank, orders, barriers_reached: Mutex::new(orders.lock().barriers_passed) };
        let loaded = begin.run(&client);
        let report = loaded.map_or_else(ClientReport::from, ClientReport::from);
        // If the coordinator has disconnected, this client removes the files.
        if send(&ClientMessage::Ended(Box::new(report))).is_err() || orders.lock().is_disconnected {
            remove_with_retries(&begin.rank.folder(&begin.place));
            break;
        }
    }
    Ok(())
}

fn send(message: &ClientMessage) -> Result<()> {
    send_message(&mut stdout().lock(), message).map_err(|e| os_error("standard output", &e))
}

fn remove_with_retries(folder: &Path) {
    for _ in 0..REMOVAL_ATTEMPTS {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(REMOVAL_RETRY_DELAY),
            _ => return,
        }
    }
}

impl AgentState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads orders until standard input ends.
    fn receive_orders(&self) {
        for line in stdin().lock().lines().map_while(io::Result::ok) {
            let order = serde_json::from_str(&line);
            let mut state = self.lock();
            match order {
                Ok(CoordinatorMessage::Begin { seat, experiment, place, through, iterations }) => {
                    state.is_stopped = false;
                    state.request = Some(LoadRequest { rank: seat, experiment, place, through, iterations });
                }
                Ok(CoordinatorMessage::Go) => state.barriers_passed += 1,
                Ok(CoordinatorMessage::Stop) => state.is_stopped = true,
                Err(error) => {
                    tracing::error!(%error, hint = "install the same version of weft on all clients", "invalid order");
                    break;
                }
            }
            self.changed.notify_all();
        }
        let mut state = self.lock();
        (state.is_stopped, state.is_disconnected) = (true, true);
        self.changed.notify_all();
    }

    /// Waits for the next load; `None` once the coordinator has disconnected.
    fn next(&self) -> Option<LoadRequest> {
        let mut state = self.lock();
        loop {
            match state.request.take() {
                Some(begin) => return Some(begin),
                None if state.is_disconnected => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// This client's part of one load.
struct Client {
    rank: ClientRank,
    orders: &'static AgentState,
    /// Number of barriers that this client has reached, including those of earlier loads.
    barriers_reached: Mutex<u64>,
}

impl Observer for Client {
    fn rank(&self) -> ClientRank {
        self.rank
    }

    fn barrier(&self) -> bool {
        let mut reached = self.barriers_reached.lock().unwrap_or_else(PoisonError::into_inner);
        *reached += 1;
        if send(&ClientMessage::Met).is_err() {
            return false;
        }
        let mut state = self.orders.lock();
        while state.barriers_passed < *reached && !state.is_stopped {
            state = self.orders.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_stopped
    }

    fn progress(&self, progress: &Progress) {
        // A failed write is noticed at the next barrier.
        let _ = send(&ClientMessage::from(progress));
    }

    fn is_stopped(&self) -> bool {
        self.orders.lock().is_stopped
    }
}
