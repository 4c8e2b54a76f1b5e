//! Routes between clients and services, with delays, cuts and redirections.

use net::{Channel, Handler, LocalFuture};
use parking_lot::Mutex;
use routing::StorageChannels;
use rt::IoBuf;
use rt::sync::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use types::{Error, Result, TargetId};
use wire::{MetaRequest, MetaResponse, StorageReply, StorageRequest};

/// Handler of storage requests.
pub type StorageHandler = Arc<dyn Handler<StorageRequest, StorageReply>>;
/// Handler of metadata requests.
pub type MetaHandler = Arc<dyn Handler<MetaRequest, MetaResponse>>;

/// Longest delay of a message on a slow route, in microseconds.
const MAX_DELAY_US: u64 = 3000;

/// Returns channels that lead to one handler for all targets.
pub fn to_storage(targets: impl IntoIterator<Item = TargetId>, handler: &StorageHandler) -> StorageChannels {
    targets.into_iter().map(|target| (target, Channel::in_process(handler.clone()))).collect()
}

/// Message latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Latency {
    /// No latency.
    Zero,
    /// A random latency per message, so that messages overtake each other.
    Random,
}

impl Latency {
    async fn delay(self) {
        if self == Latency::Zero {
            return;
        }
        // Most delays are short, some are long.
        let random = rt::random_u64();
        let us = if random.is_multiple_of(8) { random / 8 % MAX_DELAY_US } else { random / 8 % 100 };
        rt::sleep(Duration::from_micros(us)).await;
    }
}

/// A route to a service, which can be redirected to another service.
pub struct Route<Req, Rep> {
    latency: Latency,
    destination: Mutex<Destination<Req, Rep>>,
    requests: AtomicU64,
}

/// The destination of a route.
struct Destination<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    /// Set when the route is redirected: requests in flight to this service get no more replies.
    is_redirected: Arc<Event>,
}

impl<Req, Rep> Route<Req, Rep> {
    /// Creates a route without latency.
    pub fn direct(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Route<Req, Rep>> {
        Route::new(Latency::Zero, service)
    }

    /// Creates a route on which messages overtake each other.
    pub fn slow(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Route<Req, Rep>> {
        Route::new(Latency::Random, service)
    }

    /// Creates a route with a given latency.
    pub fn new(latency: Latency, service: Arc<dyn Handler<Req, Rep>>) -> Arc<Route<Req, Rep>> {
        let destination = Destination { service, is_redirected: Arc::default() };
        Arc::new(Route { latency, destination: Mutex::new(destination), requests: AtomicU64::new(0) })
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Redirects the route to another service. As after the end of a connection, requests in flight
    /// are repeated there.
    pub fn redirect_to(&self, service: Arc<dyn Handler<Req, Rep>>) {
        let old = std::mem::replace(
            &mut *self.destination.lock(),
            Destination { service, is_redirected: Arc::default() },
        );
        old.is_redirected.set();
    }
}

impl<Req: Send + Clone, Rep> Handler<Req, Rep> for Route<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        self.requests.fetch_add(1, Relaxed);
        Box::pin(async move {
            loop {
                self.latency.delay().await;
                let (service, redirected) = {
                    let destination = self.destination.lock();
                    (destination.service.clone(), destination.is_redirected.clone())
                };
                let answer = service.handle(request.clone(), payload.clone());
                if let Some(reply) = rt::select(answer, redirected.wait()).await.first() {
                    self.latency.delay().await;
                    return reply;
                }
            }
        })
    }
}

/// A route that can be cut: neither requests nor replies pass until it is restored.
pub struct CuttableRoute<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    is_connected: Event,
    /// If set, the reply to every request.
    refusal: Mutex<Option<Error>>,
}

impl<Req, Rep> CuttableRoute<Req, Rep> {
    /// Creates a route that isn't cut.
    pub fn new(service: Arc<dyn Handler<Req, Rep>>) -> Arc<CuttableRoute<Req, Rep>> {
        let whole = Event::new();
        whole.set();
        Arc::new(CuttableRoute { service, is_connected: whole, refusal: Mutex::default() })
    }

    /// Cuts the route.
    pub fn cut(&self) {
        self.is_connected.clear();
    }

    /// Restores the route.
    pub fn restore(&self) {
        self.is_connected.set();
    }

    /// Answers every request with an error from now on, as when a connection ended and the service
    /// refuses the next one. `None` ends that.
    pub fn refuse(&self, refusal: Option<Error>) {
        *self.refusal.lock() = refusal;
    }

    fn refused(&self) -> Result<()> {
        self.refusal.lock().clone().map_or(Ok(()), Err)
    }
}

impl<Req: Send, Rep> Handler<Req, Rep> for CuttableRoute<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        Box::pin(async move {
            self.is_connected.wait().await;
            self.refused()?;
            let reply = self.service.handle(request, payload).await;
            self.is_connected.wait().await;
            self.refused()?;
            reply
        })
    }
}
