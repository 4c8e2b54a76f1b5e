//! A network in between: requests and answers take their time, each its own, so that they overtake each other.

use net::{Handler, LocalFuture};
use rt::IoBuf;
use std::sync::Arc;
use std::time::Duration;
use types::Result;

/// The longest way, microseconds.
const MAX_WAY_US: u64 = 3000;

pub(crate) struct Slow<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
}

impl<Req, Rep> Slow<Req, Rep> {
    pub(crate) fn new(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Slow<Req, Rep>> {
        Arc::new(Slow { service })
    }
}

async fn travel() {
    // Mostly short, sometimes long.
    let dice = rt::random_u64();
    let us = if dice.is_multiple_of(8) { dice / 8 % MAX_WAY_US } else { dice / 8 % 100 };
    rt::sleep(Duration::from_micros(us)).await;
}

impl<Req: Send, Rep> Handler<Req, Rep> for Slow<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        Box::pin(async move {
            travel().await;
            let reply = self.service.handle(request, payload).await;
            travel().await;
            reply
        })
    }
}
