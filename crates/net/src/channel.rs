//! A client's way to a service.

use crate::Caller;
use crate::client::{Peer, RemoteService};
use rt::IoBuf;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result};
use wire::{Message, Request};

/// A future that stays on its core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How far away a service is, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// In this process.
    Here,
    /// On this machine.
    SameHost,
    /// In a network that this machine is in.
    SameNetwork,
    /// Elsewhere.
    Far,
}

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

    /// As [`Handler::handle_from`], for one that may have to wait for something before it begins
    /// and shouldn't begin when nobody waits for it any more: then its caller has been told that it
    /// failed, and has gone on.
    fn handle_until<'a>(
        &'a self,
        caller: &'a Caller,
        deadline: Deadline,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        let _ = deadline;
        self.handle_from(caller, request, payload)
    }

    /// As [`Handler::handle`], for a caller that goes elsewhere when `given_up` ends: `None` then,
    /// and nobody knows what becomes of the request.
    ///
    /// Nobody touches the payload's memory any more when this returns. A service in this process
    /// can't promise that before it has ended, and answers in any case.
    fn handle_unless<'a>(
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

    /// How far away it is.
    fn distance(&self) -> Distance {
        Distance::Here
    }
}

/// How long somebody waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// By this machine's monotonic clock, counted from when the request came: never earlier than
    /// the caller counts.
    at_ns: u64,
}

impl Deadline {
    /// As long as it takes.
    pub const NEVER: Deadline = Deadline { at_ns: u64::MAX };

    /// So many milliseconds after a time of the monotonic clock; 0: never.
    pub fn after(came_ns: u64, wait_ms: u32) -> Deadline {
        match wait_ms {
            0 => Deadline::NEVER,
            ms => Deadline { at_ns: came_ns.saturating_add(u64::from(ms) * 1_000_000) },
        }
    }

    /// Whether nobody waits any more.
    pub fn is_over(self) -> bool {
        self.at_ns != u64::MAX && rt::monotonic_ns() > self.at_ns
    }

    /// The later one.
    pub(crate) fn max(self, other: Deadline) -> Deadline {
        Deadline { at_ns: self.at_ns.max(other.at_ns) }
    }

    /// Whether it has been over for so long.
    pub(crate) fn is_over_for(self, time: Duration) -> bool {
        self.at_ns != u64::MAX && rt::monotonic_ns().saturating_sub(self.at_ns) > time.as_nanos() as u64
    }

    /// The error of a request that comes too late; it is read in logs, if at all.
    pub fn error(self) -> Error {
        Error::new(Errno::ETIMEDOUT, "the request could only have begun when its client had given it up")
            .hint("see what its service waited for in its log")
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
    /// Nobody touches the payload's memory until this returns. To a service in another process the
    /// future of a call with a payload must run to its end, for the same reason: dropped, it leaves
    /// the buffer in use for a moment.
    pub async fn call(&self, request: Req, payload: Option<IoBuf>) -> Result<Rep> {
        self.service.handle(request, payload).await
    }

    /// As [`Channel::call`], unless `given_up` ends before the answer comes: `None` then, and
    /// nobody knows what becomes of the request. The payload's memory is the caller's again in any
    /// case when this returns.
    pub async fn call_unless(
        &self,
        given_up: LocalFuture<'_, ()>,
        request: Req,
        payload: Option<IoBuf>,
    ) -> Option<Result<Rep>> {
        self.service.handle_unless(given_up, request, payload).await
    }
}

impl<Req, Rep> Channel<Req, Rep> {
    /// How far away the service is.
    pub fn distance(&self) -> Distance {
        self.service.distance()
    }
}

impl<Req: Request + 'static, Rep: Message + 'static> Channel<Req, Rep> {
    /// A way to a service in another process.
    pub fn remote(peer: Arc<Peer>) -> Channel<Req, Rep> {
        Channel { service: Arc::new(RemoteService::new(peer)) }
    }
}
