//! The ways between clients and services, and what may happen on them.

use net::{Channel, Handler, LocalFuture, StorageChannels};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use types::{Error, Result, TargetId};
use wire::{MetaRequest, MetaResponse, StorageReply, StorageRequest};

/// What answers storage requests.
pub type StorageHandler = Arc<dyn Handler<StorageRequest, StorageReply>>;
/// What answers metadata requests.
pub type MetaHandler = Arc<dyn Handler<MetaRequest, MetaResponse>>;

/// The longest delay of a message on a slow way, microseconds.
const MAX_DELAY_US: u64 = 3000;

/// The same way to all targets.
pub fn to_storage(targets: impl IntoIterator<Item = TargetId>, handler: &StorageHandler) -> StorageChannels {
    targets.into_iter().map(|target| (target, Channel::in_process(handler.clone()))).collect()
}

/// How long messages take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// No time.
    AtOnce,
    /// Each message takes its own time, so that messages overtake each other.
    Slow,
}

impl Pace {
    async fn travel(self) {
        if self == Pace::AtOnce {
            return;
        }
        // Mostly short, sometimes long.
        let dice = rt::random_u64();
        let us = if dice.is_multiple_of(8) { dice / 8 % MAX_DELAY_US } else { dice / 8 % 100 };
        rt::sleep(Duration::from_micros(us)).await;
    }
}

/// The way to a service, which can lead to another one later.
pub struct Route<Req, Rep> {
    pace: Pace,
    end: Mutex<End<Req, Rep>>,
    requests: AtomicU64,
}

/// Where a route leads.
struct End<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    /// Set when the route leads elsewhere: requests in flight to this service get no answer any
    /// more.
    is_over: Arc<Event>,
}

impl<Req, Rep> Route<Req, Rep> {
    /// A route on which messages take no time.
    pub fn direct(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Route<Req, Rep>> {
        Route::new(Pace::AtOnce, service)
    }

    /// A route on which messages overtake each other.
    pub fn slow(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Route<Req, Rep>> {
        Route::new(Pace::Slow, service)
    }

    /// A route of a given pace.
    pub fn new(pace: Pace, service: Arc<dyn Handler<Req, Rep>>) -> Arc<Route<Req, Rep>> {
        let end = End { service, is_over: Arc::default() };
        Arc::new(Route { pace, end: Mutex::new(end), requests: AtomicU64::new(0) })
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Leads to another service from now on. As after the end of a connection, requests in flight
    /// are repeated there.
    pub fn lead_to(&self, service: Arc<dyn Handler<Req, Rep>>) {
        let old = std::mem::replace(&mut *self.end.lock(), End { service, is_over: Arc::default() });
        old.is_over.set();
    }
}

impl<Req: Send + Clone, Rep> Handler<Req, Rep> for Route<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        self.requests.fetch_add(1, Relaxed);
        Box::pin(async move {
            loop {
                self.pace.travel().await;
                let (service, is_over) = {
                    let end = self.end.lock();
                    (end.service.clone(), end.is_over.clone())
                };
                let mut answer = service.handle(request.clone(), payload.clone());
                let mut is_over = pin!(is_over.wait());
                let reply = poll_fn(|context| match answer.as_mut().poll(context) {
                    Poll::Ready(reply) => Poll::Ready(Some(reply)),
                    Poll::Pending => is_over.as_mut().poll(context).map(|()| None),
                });
                if let Some(reply) = reply.await {
                    self.pace.travel().await;
                    return reply;
                }
            }
        })
    }
}

/// A way that can be cut: nothing gets through, neither requests nor answers, until it is whole
/// again.
pub struct Cuttable<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    whole: Event,
    /// The answer to every request while it is set.
    refusal: Mutex<Option<Error>>,
}

impl<Req, Rep> Cuttable<Req, Rep> {
    /// A way that is whole.
    pub fn new(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Cuttable<Req, Rep>> {
        let whole = Event::new();
        whole.set();
        Arc::new(Cuttable { service, whole, refusal: Mutex::default() })
    }

    /// Cuts the way.
    pub fn cut(&self) {
        self.whole.clear();
    }

    /// Makes the way whole again.
    pub fn mend(&self) {
        self.whole.set();
    }

    /// Answers every request with an error from now on, as after a connection was ended and the
    /// next one was refused; `None` ends that.
    pub fn refuse(&self, refusal: Option<Error>) {
        *self.refusal.lock() = refusal;
    }

    fn refused(&self) -> Result<()> {
        self.refusal.lock().clone().map_or(Ok(()), Err)
    }
}

impl<Req: Send, Rep> Handler<Req, Rep> for Cuttable<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        Box::pin(async move {
            self.whole.wait().await;
            self.refused()?;
            let reply = self.service.handle(request, payload).await;
            self.whole.wait().await;
            self.refused()?;
            reply
        })
    }
}
