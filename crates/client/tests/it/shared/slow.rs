//! A network in between: requests and answers take their time, each its own, so that they overtake each other.

use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use types::{Error, Result};

/// The longest way, microseconds.
const MAX_WAY_US: u64 = 3000;

pub(crate) struct Slow<Req, Rep> {
    service: Mutex<Way<Req, Rep>>,
    requests: AtomicU64,
}

struct Way<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    /// Set when it leads elsewhere: what is under way there gets no answer any more.
    ended: Arc<Event>,
}

impl<Req, Rep> Slow<Req, Rep> {
    pub(crate) fn new(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Slow<Req, Rep>> {
        let way = Way { service, ended: Arc::default() };
        Arc::new(Slow { service: Mutex::new(way), requests: AtomicU64::new(0) })
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Leads to another service from now on. As after the end of a connection, requests are repeated there that are under way.
    pub(crate) fn lead_to(&self, service: Arc<dyn Handler<Req, Rep>>) {
        let old = std::mem::replace(&mut *self.service.lock(), Way { service, ended: Arc::default() });
        old.ended.set();
    }
}

/// A way that can be cut: nothing gets through, neither requests nor answers, until it is whole again.
pub(crate) struct Cuttable<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    whole: Event,
    /// What everything is answered that comes or goes.
    refusal: Mutex<Option<Error>>,
}

impl<Req, Rep> Cuttable<Req, Rep> {
    pub(crate) fn new(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Cuttable<Req, Rep>> {
        let whole = Event::new();
        whole.set();
        Arc::new(Cuttable { service, whole, refusal: Mutex::default() })
    }

    pub(crate) fn cut(&self) {
        self.whole.clear();
    }

    pub(crate) fn mend(&self) {
        self.whole.set();
    }

    /// From now on this is the answer to everything, as after a connection was ended and another one refused; or nothing is refused any more.
    pub(crate) fn refuse(&self, refusal: Option<Error>) {
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

async fn travel() {
    // Mostly short, sometimes long.
    let dice = rt::random_u64();
    let us = if dice.is_multiple_of(8) { dice / 8 % MAX_WAY_US } else { dice / 8 % 100 };
    rt::sleep(Duration::from_micros(us)).await;
}

impl<Req: Send + Clone, Rep> Handler<Req, Rep> for Slow<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        self.requests.fetch_add(1, Relaxed);
        Box::pin(async move {
            loop {
                travel().await;
                let (service, ended) = {
                    let way = self.service.lock();
                    (way.service.clone(), way.ended.clone())
                };
                let mut answer = service.handle(request.clone(), payload.clone());
                let mut ended = pin!(ended.wait());
                let reply = poll_fn(|context| match answer.as_mut().poll(context) {
                    Poll::Ready(reply) => Poll::Ready(Some(reply)),
                    Poll::Pending => ended.as_mut().poll(context).map(|()| None),
                });
                if let Some(reply) = reply.await {
                    travel().await;
                    return reply;
                }
            }
        })
    }
}
