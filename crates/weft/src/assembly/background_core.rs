//! The thread that opens the services, does their background work and closes them.

use crate::output::os_error;
use rt::sync::Event;
use rt::{CoreConfig, start_core};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use types::{Errno, Error, Result};

/// The services of a process.
pub trait ProcessServices: Send + Sync + Sized + 'static {
    /// Parameters for opening the services.
    type Plan: Send + 'static;

    /// Opens the services, and recovers from a crash if there was one.
    fn open(plan: &Self::Plan) -> impl Future<Output = Result<Self>>;

    /// Starts their background work on the calling core.
    fn spawn_background(self: &Arc<Self>);

    /// Closes them in order. Tries everything, and returns the first failure.
    fn close(&self) -> impl Future<Output = Result<()>>;
}

/// The background core, and the services that it opened.
pub struct BackgroundCore<S> {
    services: Arc<S>,
    shut_down: Arc<Event>,
    closed: Receiver<Result<()>>,
    thread: JoinHandle<()>,
}

impl<S: ProcessServices> BackgroundCore<S> {
    /// Opens the services and starts their background work.
    pub fn start(plan: S::Plan) -> Result<BackgroundCore<S>> {
        let shut_down = Arc::new(Event::new());
        let (opening, opened) = sync_channel(1);
        let (closing, closed) = sync_channel(1);
        let until = shut_down.clone();
        let config = CoreConfig { name: "weft-bg".into(), ..CoreConfig::default() };
        let main = move || run::<S>(plan, opening, until, closing);
        let thread = start_core(config, main).map_err(|e| os_error("can't start a thread", &e))?;
        let services = opened.recv().map_err(|_| background_thread_died())??;
        Ok(BackgroundCore { services, shut_down, closed, thread })
    }

    /// Returns the services.
    pub fn services(&self) -> &Arc<S> {
        &self.services
    }

    /// Closes the services; no caller may use them any more. Everything they acknowledged is on
    /// disk when this returns.
    pub fn shut_down(self) -> Result<()> {
        self.shut_down.set();
        let outcome = self.closed.recv().map_err(|_| background_thread_died())?;
        self.thread.join().map_err(|_| background_thread_died())?;
        outcome
    }
}

async fn run<S: ProcessServices>(
    plan: S::Plan,
    opening: SyncSender<Result<Arc<S>>>,
    until: Arc<Event>,
    closing: SyncSender<Result<()>>,
) {
    let services = match S::open(&plan).await {
        Ok(services) => Arc::new(services),
        Err(error) => {
            // The caller waits for exactly this.
            let _ = opening.send(Err(error));
            return;
        }
    };
    services.spawn_background();
    let _ = opening.send(Ok(services.clone()));
    until.wait().await;
    let _ = closing.send(services.close().await);
}

fn background_thread_died() -> Error {
    Error::new(Errno::ECANCELED, "the background thread ended unexpectedly")
        .hint("see the lines above, or the log")
}
