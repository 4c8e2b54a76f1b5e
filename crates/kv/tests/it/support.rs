//! Helpers of the integration tests.

use kv::Batch;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Polls once, with a waker that does nothing.
pub fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns a batch that sets one key.
pub fn put(key: &str, value: &str) -> Batch {
    Batch {
        guards: vec![],
        writes: vec![(key.into(), Some(bytes::Bytes::copy_from_slice(value.as_bytes())))],
    }
}

/// Returns a batch that deletes one key.
pub fn delete(key: &str) -> Batch {
    Batch { guards: vec![], writes: vec![(key.into(), None)] }
}

/// Returns the same batch, on the condition that `key` has the value `expected`.
pub fn guarded(mut batch: Batch, key: &str, expected: Option<&str>) -> Batch {
    let expected = expected.map(|value| value.to_owned().into());
    batch.guards.push(kv::Guard { key: key.into(), expected });
    batch
}
