//! A helper thread for system calls that may take long and that the ring doesn't offer.

use crate::sync::Event;
use parking_lot::Mutex;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Calls queued for the thread; further callers retry.
const MAX_QUEUED: usize = 64;
/// How long a caller that finds the queue full waits before it retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

type Job = Box<dyn FnOnce() + Send>;

/// Runs `call` on the helper thread, which starts with the first call and serves the whole process.
pub(crate) async fn run<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let answer = Arc::new((Mutex::new(None), Event::new()));
    let mut job: Job = Box::new({
        let answer = answer.clone();
        move || {
            let result = call();
            *answer.0.lock() = Some(result);
            answer.1.set();
        }
    });
    let queue = helper()?;
    while let Err(refused) = queue.try_send(job) {
        match refused {
            TrySendError::Full(back) => job = back,
            TrySendError::Disconnected(_) => return Err(io::Error::other("the helper thread has ended")),
        }
        crate::sleep(RETRY_INTERVAL).await;
    }
    answer.1.wait().await;
    let result = answer.0.lock().take();
    result.expect("the result is stored before the event is set")
}

fn helper() -> io::Result<&'static SyncSender<Job>> {
    static HELPER: OnceLock<Result<SyncSender<Job>, io::ErrorKind>> = OnceLock::new();
    let started = HELPER.get_or_init(|| {
        let (sender, receiver) = sync_channel(MAX_QUEUED);
        let thread = std::thread::Builder::new().name("weft-blocking".into());
        thread.spawn(move || serve(receiver)).map(|_| sender).map_err(|e| e.kind())
    });
    started.as_ref().map_err(|kind| io::Error::from(*kind))
}

fn serve(jobs: Receiver<Job>) {
    jobs.into_iter().for_each(|job| job());
}
