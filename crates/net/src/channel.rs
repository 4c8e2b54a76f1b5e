//! A client's way to a service.

use crate::Caller;
use crate::client::{Peer, RemoteService};
use rt::IoBuf;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use types::Result;
use wire::{Message, Request};

/// A future that stays on its core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A service that answers requests.
pub trait Handler<Req, Rep>: Send + Sync {
    /// Answers one request. `payload` is the data of a write, or the buffer that a read fills.
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>>;

    /// As [`Handler::handle`], for a request that came over a connection: who sent it is known.
    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        let _ = caller;
        self.handle(request, payload)
    }
}

/// A way to one service.
pub struct Channel<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
}

impl<Req, Rep> Clone for Channel<Req, Rep> {
    fn clone(&self) -> Self {
        Channel { service: self.service.clone() }
    }
}

impl<Req, Rep> Channel<Req, Rep> {
    /// A way to a service in this process.
    pub fn in_process(service: Arc<dyn Handler<Req, Rep>>) -> Channel<Req, Rep> {
        Channel { service }
    }

    /// Sends a request and waits for its answer.
    ///
    /// Nobody touches the payload's memory until this returns. To a service in another process the future of a call with a payload
    /// must run to its end, for the same reason: dropped, it leaves the buffer in use for a moment.
    pub async fn call(&self, request: Req, payload: Option<IoBuf>) -> Result<Rep> {
        self.service.handle(request, payload).await
    }
}

impl<Req: Request + 'static, Rep: Message + 'static> Channel<Req, Rep> {
    /// A way to a service in another process.
    pub fn remote(peer: Arc<Peer>) -> Channel<Req, Rep> {
        Channel { service: Arc::new(RemoteService::new(peer)) }
    }
}
