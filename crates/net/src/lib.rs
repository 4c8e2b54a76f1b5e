//! RPC over a transport.
//!
//! A [`Channel`] is a client's way to one service; a service is a [`Handler`]. In one process a call is a function call on
//! the caller's core: nothing is queued, copied or handed to another thread. The payload buffer of a request is the very buffer
//! that the disk reads into or writes from. A transport over sockets becomes a second variant of [`Channel`], with the same
//! `call`: header out, payload straight between socket and buffer, deadline and retry inside.
//!
//! What messages mean is not known here.

mod storage_channels;

pub use storage_channels::{Connect, StorageChannel, StorageChannels, WhenOffline};

use rt::IoBuf;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use types::Result;

/// A future that stays on its core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A service that answers requests.
pub trait Handler<Req, Rep>: Send + Sync {
    /// Answers one request. `payload` is the data of a write, or the buffer that a read fills.
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>>;
}

/// A way to one service.
pub struct Channel<Req, Rep> {
    transport: Transport<Req, Rep>,
}

enum Transport<Req, Rep> {
    InProcess(Arc<dyn Handler<Req, Rep>>),
}

impl<Req, Rep> Clone for Channel<Req, Rep> {
    fn clone(&self) -> Self {
        match &self.transport {
            Transport::InProcess(service) => Channel::in_process(service.clone()),
        }
    }
}

impl<Req, Rep> Channel<Req, Rep> {
    /// A way to a service in this process.
    pub fn in_process(service: Arc<dyn Handler<Req, Rep>>) -> Channel<Req, Rep> {
        Channel { transport: Transport::InProcess(service) }
    }

    /// Sends a request and waits for its answer.
    pub async fn call(&self, request: Req, payload: Option<IoBuf>) -> Result<Rep> {
        match &self.transport {
            Transport::InProcess(service) => service.handle(request, payload).await,
        }
    }
}
