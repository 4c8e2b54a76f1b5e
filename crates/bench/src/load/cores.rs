//! Runs the threads of a load as tasks on several cores.

use super::directory::failed;
use rt::sync::Event;
use rt::{CoreConfig, CoreGroup};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use types::Result;

type Start = Box<dyn FnOnce() + Send>;

/// Cores of `rt`, one on each CPU. [`Cores::end`] ends them.
pub struct Cores {
    threads: CoreGroup,
    queues: Vec<Arc<Queue>>,
}

/// Tasks that a core is to start.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Start>>,
    changed: Event,
    is_over: AtomicBool,
}

impl Cores {
    /// Starts the cores.
    ///
    /// # Errors
    /// A thread that can't be started.
    pub fn start() -> Result<Cores> {
        let mut cores = Cores { threads: CoreGroup::default(), queues: Vec::new() };
        for cpu in rt::allowed_cpus() {
            let queue = Arc::new(Queue::default());
            let config = CoreConfig { name: format!("bench-{cpu}"), cpu: Some(cpu), batch: false };
            let serve = queue.clone();
            let started = cores.threads.start(config, move || async move { serve.run().await });
            if let Err(error) = started {
                cores.end();
                return Err(failed("can't start a thread".into(), error));
            }
            cores.queues.push(queue);
        }
        Ok(cores)
    }

    /// Starts a task; tasks with ascending numbers are distributed round-robin.
    pub fn start_task<F: Future<Output = ()> + 'static>(
        &self,
        number: u32,
        body: impl FnOnce() -> F + Send + 'static,
    ) {
        let queue = &self.queues[number as usize % self.queues.len()];
        let start: Start = Box::new(move || rt::spawn(body()));
        queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(start);
        queue.notify();
    }

    /// Ends the cores, with the tasks that still run.
    pub fn end(&self) {
        for queue in &self.queues {
            queue.is_over.store(true, Ordering::Release);
            queue.notify();
        }
        // A panic was reported when it happened, and its load has failed.
        self.threads.join();
    }
}

impl Queue {
    fn notify(&self) {
        self.changed.set();
        self.changed.clear();
    }

    async fn run(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            let changed = self.changed.wait();
            let starts = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if starts.is_empty() && !self.is_over.load(Ordering::Acquire) {
                changed.await;
            }
            starts.into_iter().for_each(|start| start());
        }
    }
}
