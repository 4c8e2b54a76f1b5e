//! Loads on several clients: each is started by a command of its own, receives its orders on
//! standard input, and begins each phase when all are ready.

use super::progress::ProgressDisplay;
use super::protocol::{ClientMessage, CoordinatorMessage, VERSION, send_message};
use crate::output::os_error;
use bench::load::{self, ClientRank, ClientReport, LoadResult, Observer, merge_reports};
use bench::{Experiment, Through};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Interval of checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time until a client has started.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for a client to stop a running load.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for a client that has never reported ready: it has nothing to stop.
const UNREADY_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Placeholder of a client's name in the command that starts it.
const NAME_PLACEHOLDER: &str = "{}";

/// Clients that wait for orders.
pub(super) struct RemoteClients {
    clients: Vec<Client>,
    messages: Receiver<(usize, Option<ClientMessage>)>,
}

struct Client {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    /// Longest time to exit after the end of its orders.
    stop_timeout: Duration,
}

/// Checks the names of clients, and the command that starts them: names become words of a shell.
pub(super) fn check_clients(names: &[String], launch: &str) -> Result<()> {
    if names.len() > 1 && !launch.contains(NAME_PLACEHOLDER) {
        let text = format!("--launch '{launch}' is the same for every client");
        return Err(Error::new(Errno::EINVAL, text).hint("put {} where the name of the client belongs"));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
    let is_valid = |name: &&String| !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain);
    match names.iter().find(|name| !is_valid(name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(Errno::EINVAL, format!("'{name}' is not a valid client name"))
            .hint("use letters, digits and . _ - @ :")),
    }
}

impl RemoteClients {
    /// Starts clients with these names, each by the command with `{}` replaced by its name. The
    /// caller has checked both ([`check_clients`]).
    ///
    /// # Errors
    /// A client can't be started, or has another version; those already started are stopped.
    pub(super) fn start(
        names: &[String],
        launch: &str,
        display: &ProgressDisplay<'_>,
    ) -> Result<RemoteClients> {
        let (sender, messages) = mpsc::channel();
        let mut clients = RemoteClients { clients: Vec::new(), messages };
        for (index, name) in names.iter().enumerate() {
            let client = Client::start(index, name, launch, &sender)?;
            clients.clients.push(client);
        }
        let until = Instant::now() + START_TIMEOUT;
        let mut missing: Vec<usize> = (0..names.len()).collect();
        while let Some(&first) = missing.first() {
            let late = || clients.failed(first, "hasn't answered yet", Errno::ETIMEDOUT);
            match clients.messages.recv_timeout(POLL_INTERVAL) {
                Ok((index, Some(ClientMessage::Ready { version }))) if version == VERSION => {
                    missing.retain(|one| *one != index);
                    clients.clients[index].stop_timeout = STOP_TIMEOUT;
                }
                Ok((index, Some(message))) => {
                    let text = format!("sent {message:?} instead of {VERSION}");
                    return Err(clients.failed(index, &text, Errno::EPROTO));
                }
                Ok((index, None)) => {
                    return Err(clients.failed(index, "has ended before it was ready", Errno::ENOTCONN));
                }
                Err(_) if display.is_stopped() => {
                    return Err(Error::new(Errno::EINTR, "ended by a signal before all clients were ready"));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => return Err(late()),
            }
        }
        Ok(clients)
    }

    fn failed(&self, index: usize, what: &str, errno: Errno) -> Error {
        let name = &self.clients[index].name;
        Error::new(errno, format!("client {name} {what}"))
            .hint("run the --launch command by hand: it must start weft bench agent of this version without a prompt")
    }

    /// Runs the load of an experiment on a directory with all clients, as [`load::run`] does; each
    /// through its own mount, or a client core configured like its mount.
    ///
    /// # Errors
    /// Impossible experiments are refused before anything is written.
    pub(super) fn run(
        &mut self,
        experiment: &Experiment,
        (place, through): (&Path, Through),
        iterations: u32,
        display: &ProgressDisplay<'_>,
    ) -> Result<LoadResult> {
        let clients = self.clients.len() as u32;
        load::check_for(experiment, place, clients)?;
        let place = std::path::absolute(place).map_err(|e| os_error(place.display(), &e))?;
        let number = rt::secret_u64();
        let folder = SharedFolder::make(ClientRank { client: 0, clients, load: number }.folder(&place))?;
        for (client, one) in (0..).zip(&mut self.clients) {
            let rank = ClientRank { client, clients, load: number };
            one.order(&CoordinatorMessage::Begin {
                seat: rank,
                experiment: experiment.clone(),
                place: place.clone(),
                through,
                iterations,
            });
        }
        let reports = self.coordinate(display);
        let names = self.clients.iter().map(|client| client.name.clone());
        let mut result = merge_reports(names.zip(reports).collect());
        if let Err(left) = folder.remove() {
            result.notes.push(left.to_string());
            result.failure.get_or_insert(left);
        }
        Ok(result)
    }

    /// Coordinates the clients through a load. Returns the result of each.
    fn coordinate(&mut self, display: &ProgressDisplay<'_>) -> Vec<ClientReport> {
        let mut reports: Vec<Option<ClientReport>> = self.clients.iter().map(|_| None).collect();
        let mut waiting_clients = 0;
        let mut stopped: Option<Instant> = None;
        while reports.iter().any(Option::is_none) {
            let mut is_over = false;
            match self.messages.recv_timeout(POLL_INTERVAL) {
                Ok((_, Some(ClientMessage::Met))) => waiting_clients += 1,
                Ok((index, Some(ClientMessage::Ended(one)))) => {
                    is_over |= !one.is_whole();
                    reports[index] = Some(*one);
                }
                Ok((0, Some(message))) => {
                    message.progress().iter().for_each(|progress| display.progress(progress));
                }
                Ok((_, Some(_))) | Err(RecvTimeoutError::Timeout) => {}
                Ok((index, None)) => {
                    reports[index].get_or_insert_with(|| {
                        Error::new(Errno::ENOTCONN, "it ended during the load").into()
                    });
                    is_over = true;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // A client that has ended won't reach another barrier.
            is_over |= waiting_clients > 0 && reports.iter().any(Option::is_some);
            if (is_over || display.is_stopped()) && stopped.is_none() {
                stopped = Some(Instant::now());
                self.all(&CoordinatorMessage::Stop);
            } else if waiting_clients == self.clients.len() {
                waiting_clients = 0;
                self.all(&CoordinatorMessage::Go);
            }
            if stopped.is_some_and(|since| since.elapsed() > STOP_TIMEOUT) {
                break;
            }
        }
        let late = || Error::new(Errno::ETIMEDOUT, format!("it didn't end within {STOP_TIMEOUT:?}")).into();
        reports.into_iter().map(|one| one.unwrap_or_else(late)).collect()
    }

    fn all(&mut self, order: &CoordinatorMessage) {
        self.clients.iter_mut().for_each(|client| client.order(order));
    }
}

impl Client {
    fn start(
        index: usize,
        name: &str,
        launch: &str,
        messages: &Sender<(usize, Option<ClientMessage>)>,
    ) -> Result<Client> {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(launch.replace(NAME_PLACEHOLDER, name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // A signal from the keyboard must reach only this process, which then stops the clients.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|e| os_error(format!("client {name}"), &e))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        let messages = messages.clone();
        thread::spawn(move || {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
                .map_while(io::Result::ok);
            for message in lines.map_while(|line| serde_json::from_str(&line).ok()) {
                // The channel has no receiver once the load is over.
                let _ = messages.send((index, Some(message)));
            }
            let _ = messages.send((index, None));
        });
        Ok(Client { name: name.into(), child, orders, stop_timeout: UNREADY_STOP_TIMEOUT })
    }

    /// Sends an order. A failure is noticed when the client ends.
    fn order(&mut self, order: &CoordinatorMessage) {
        if self.orders.as_mut().is_some_and(|orders| send_message(orders, order).is_err()) {
            self.orders = None;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The client exits at the end of its orders.
        self.orders = None;
        let until = Instant::now() + self.stop_timeout;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > until {
                // Kills everything that the command has started: it has its own process group.
                let group = rustix::process::Pid::from_child(&self.child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The directory in which all clients work; it is removed at the end.
struct SharedFolder(Option<PathBuf>);

impl SharedFolder {
    fn make(path: PathBuf) -> Result<SharedFolder> {
        std::fs::create_dir(&path).map_err(|e| os_error(path.display(), &e))?;
        Ok(SharedFolder(Some(path)))
    }

    fn remove(mut self) -> Result<()> {
        let Some(path) = self.0.take() else { return Ok(()) };
        std::fs::remove_dir_all(&path).map_err(|e| os_error(path.display(), &e))
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        // Errors are ignored: another one is reported to the user already.
        self.0.iter().for_each(|path| _ = std::fs::remove_dir_all(path));
    }
}
