//! The core that runs the commands of the control socket and of the HTTP interface.

use crate::output::os_error;
use rt::sync::Event;
use rt::{CoreConfig, start_core};
use std::pin::Pin;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use types::{Errno, Error, Result};

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Job = Box<dyn FnOnce() -> Task + Send>;

/// A core that lives as long as the process. Each connection of a caller has its own thread, which
/// ends with the answer; tasks that a command starts beside its answer would end with that thread.
/// It is separate from the core of the background work, whose heartbeats must not wait for a
/// command that scans all metadata.
///
/// The number of concurrent commands is limited by the connections that the control socket and the
/// HTTP interface accept.
pub struct CommandCore {
    waiting: Arc<JobQueue>,
}

#[derive(Default)]
struct JobQueue {
    jobs: Mutex<Vec<Job>>,
    not_empty: Event,
}

impl CommandCore {
    /// Starts the core.
    pub fn start() -> Result<CommandCore> {
        let waiting = Arc::new(JobQueue::default());
        let theirs = waiting.clone();
        let config = CoreConfig { name: "weft-cmd".into(), ..CoreConfig::default() };
        start_core(config, move || theirs.run_jobs()).map_err(|e| os_error("can't start a thread", &e))?;
        Ok(CommandCore { waiting })
    }

    /// Runs the future that `work` returns, and all tasks that it spawns. Blocks the calling
    /// thread, which must not be a core of this process.
    pub fn run<T, F>(&self, work: impl FnOnce() -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (result_sender, result_receiver) = sync_channel(1);
        let job = move || -> Task {
            Box::pin(async move {
                // The caller waits for exactly this.
                let _ = result_sender.send(work().await);
            })
        };
        self.waiting.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(job));
        self.waiting.not_empty.set();
        result_receiver.recv().map_err(|_| {
            Error::new(Errno::ECANCELED, "the process stopped before it executed the command")
                .hint("try again when it runs")
        })
    }
}

impl JobQueue {
    async fn run_jobs(self: Arc<Self>) {
        loop {
            self.not_empty.wait().await;
            self.not_empty.clear();
            let jobs = std::mem::take(&mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner));
            jobs.into_iter().for_each(|job| rt::spawn(job()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn what_a_command_starts_outlives_its_answer() {
        let core = Arc::new(CommandCore::start().unwrap());
        let (sender, receiver) = channel();
        let go = Arc::new(Event::new());
        let until = go.clone();
        let answer = core.run(move || async move {
            rt::spawn(async move {
                until.wait().await;
                sender.send(()).unwrap();
            });
            7
        });
        assert_eq!(answer, Ok(7));
        go.set();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(()), "it ended with the answer");
    }

    #[test]
    fn commands_do_not_wait_for_each_other() {
        let core = Arc::new(CommandCore::start().unwrap());
        let free = Arc::new(Event::new());
        let (first, until) = (core.clone(), free.clone());
        let slow = std::thread::spawn(move || first.run(move || async move { until.wait().await }));
        for _ in 0..3 {
            assert_eq!(core.run(|| async { "quick" }), Ok("quick"));
        }
        free.set();
        slow.join().unwrap().unwrap();
    }
}
