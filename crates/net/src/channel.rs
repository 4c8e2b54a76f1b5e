//! A client's channel to a service.

use crate::Caller;
use crate::client::{Peer, RemoteService};
use rt::sync::Event;
use rt::{Either, IoBuf};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use types::{Errno, Error, Result};
use wire::{Message, Request};

/// A future that stays on its core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Network distance of a service, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// In this process.
    InProcess,
    /// On this machine.
    SameHost,
    /// On a network that this machine is attached to.
    SameNetwork,
    /// Elsewhere.
    Remote,
}

/// A service that answers requests.
pub trait Handler<Req, Rep>: Send + Sync {
    /// Answers one request. `payload` is the data of a write, or the buffer that a read fills.
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>>;

    /// As [`Handler::handle`], for a request that came over a connection, so that its caller is
    /// known.
    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        let _ = caller;
        self.handle(request, payload)
    }

    /// As [`Handler::handle_from`], for a request that may have to wait before it begins. It
    /// shouldn't begin after `deadline`: by then its caller was told that it failed, and has
    /// continued without it.
    fn handle_with_deadline<'a>(
        &'a self,
        caller: &'a Caller,
        deadline: Deadline,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        let _ = deadline;
        self.handle_from(caller, request, payload)
    }

    /// As [`Handler::handle`], for a caller that goes elsewhere when `given_up` completes. Returns
    /// `None` then, and the outcome of the request is uncertain.
    ///
    /// Nothing accesses the payload's memory after this returns. A service in this process can't
    /// guarantee that before the request has ended, so it always answers.
    fn handle_or_abandon<'a>(
        &'a self,
        given_up: LocalFuture<'a, ()>,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Option<Result<Rep>>>
    where
        Rep: 'a,
    {
        drop(given_up);
        let answer = self.handle(request, payload);
        Box::pin(async move { Some(answer.await) })
    }

    /// Network distance of the service.
    fn distance(&self) -> Distance {
        Distance::InProcess
    }
}

/// When the caller of a request stops waiting for its answer: at a time, or when the connection
/// that the request came over has ended. In the latter case the caller sends the request again on
/// its next connection, which isn't welcomed before the requests of this one have ended.
#[derive(Clone, Debug)]
pub struct Deadline {
    /// By this machine's monotonic clock, counted from the arrival of the request. Never earlier
    /// than the caller's own deadline.
    at_ns: u64,
    /// Set when the connection has ended; `None` for a caller in this process.
    connection_ended: Option<Arc<Event>>,
}

impl Deadline {
    /// No deadline.
    pub const NEVER: Deadline = Deadline { at_ns: u64::MAX, connection_ended: None };

    /// The deadline `wait_ms` milliseconds after `arrived_ns` of the monotonic clock; 0 means
    /// never.
    pub fn after(arrived_ns: u64, wait_ms: u32) -> Deadline {
        match wait_ms {
            0 => Deadline::NEVER,
            ms => {
                let at_ns = arrived_ns.saturating_add(u64::from(ms) * 1_000_000);
                Deadline { at_ns, connection_ended: None }
            }
        }
    }

    /// The same for a request that came over a connection; `ended` is set when that has ended.
    pub fn of_connection(self, ended: Arc<Event>) -> Deadline {
        Deadline { connection_ended: Some(ended), ..self }
    }

    /// Whether nobody waits for the answer any more.
    pub fn has_passed(&self) -> bool {
        self.connection_ended.as_ref().is_some_and(|ended| ended.is_set())
            || self.at_ns != u64::MAX && rt::monotonic_ns() > self.at_ns
    }

    /// Runs a wait of a request that hasn't begun, unless its connection ends. Without this, what
    /// the caller would send on its next connection could be what the request waits for.
    ///
    /// # Errors
    /// [`Deadline::error`] when the connection ends; `wait` is dropped then.
    pub async fn unless_disconnected<T>(&self, wait: impl Future<Output = T>) -> Result<T> {
        let Some(ended) = &self.connection_ended else { return Ok(wait.await) };
        match rt::select(wait, ended.wait()).await {
            Either::First(outcome) => Ok(outcome),
            Either::Second(()) => Err(self.error()),
        }
    }

    /// The time of the deadline on the monotonic clock, for requests of one connection.
    pub(crate) fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// The error of a request that comes too late. It appears in logs, if anywhere.
    pub fn error(&self) -> Error {
        Error::new(Errno::ETIMEDOUT, "the request's deadline passed before it could begin")
            .hint("the log of the service shows what it waited for")
    }
}

/// A channel to one service.
pub struct Channel<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
}

impl<Req, Rep> Clone for Channel<Req, Rep> {
    fn clone(&self) -> Self {
        Channel { service: self.service.clone() }
    }
}

impl<Req, Rep> Channel<Req, Rep> {
    /// A channel to a service in this process.
    pub fn in_process(service: Arc<dyn Handler<Req, Rep>>) -> Channel<Req, Rep> {
        Channel { service }
    }

    /// Sends a request and waits for its answer.
    ///
    /// Nothing accesses the payload's memory after this returns. For a service in another process,
    /// a call with a payload must therefore run to its end: a dropped future leaves the buffer in
    /// use for a moment.
    pub async fn call(&self, request: Req, payload: Option<IoBuf>) -> Result<Rep> {
        self.service.handle(request, payload).await
    }

    /// As [`Channel::call`], unless `given_up` completes before the answer arrives. Returns `None`
    /// then, and the outcome of the request is uncertain. In either case nothing accesses the
    /// payload's memory after this returns.
    pub async fn call_or_abandon(
        &self,
        given_up: LocalFuture<'_, ()>,
        request: Req,
        payload: Option<IoBuf>,
    ) -> Option<Result<Rep>> {
        self.service.handle_or_abandon(given_up, request, payload).await
    }
}

impl<Req, Rep> Channel<Req, Rep> {
    /// Network distance of the service.
    pub fn distance(&self) -> Distance {
        self.service.distance()
    }
}

impl<Req: Request + 'static, Rep: Message + 'static> Channel<Req, Rep> {
    /// A channel to a service in another process.
    pub fn remote(peer: Arc<Peer>) -> Channel<Req, Rep> {
        Channel { service: Arc::new(RemoteService::new(peer)) }
    }
}
