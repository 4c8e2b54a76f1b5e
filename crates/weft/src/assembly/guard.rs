//! What stands between connections and a service: who may ask what, and from when on.

use net::{Caller, Handler, LocalFuture};
use rt::IoBuf;
use rt::sync::Event;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result, SessionId};
use wire::{KvRequest, MetaOp, MetaRequest, StorageOp, StorageRequest};

/// How long a request waits until its service has started: less than a client's usual patience, so that the client learns the reason.
const PATIENCE: Duration = Duration::from_secs(45);

/// A service behind its guard.
pub struct Guarded<S> {
    service: Arc<S>,
    /// Set when the service may be asked.
    open: Arc<Event>,
}

impl<S> Guarded<S> {
    /// A service that may be asked when `open` is set.
    pub fn new(service: Arc<S>, open: Arc<Event>) -> Arc<Guarded<S>> {
        Arc::new(Guarded { service, open })
    }
}

/// A request that says what only other services may ask.
pub trait Guard {
    /// Whether it acts for the cluster and not for a client.
    fn is_internal(&self) -> bool;
}

impl Guard for StorageRequest {
    fn is_internal(&self) -> bool {
        self.session == SessionId(0) || matches!(self.op, StorageOp::Fence { .. })
    }
}

impl Guard for MetaRequest {
    fn is_internal(&self) -> bool {
        self.session == SessionId(0) && !matches!(self.op, MetaOp::Sync)
    }
}

/// What is in the store, and who owns it, is between services.
impl Guard for KvRequest {
    fn is_internal(&self) -> bool {
        true
    }
}

impl<S, Req: Guard + 'static, Rep: 'static> Handler<Req, Rep> for Guarded<S>
where
    S: Handler<Req, Rep> + 'static,
{
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        self.service.handle(request, payload)
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        if request.is_internal() && !caller.proof.is_trusted_as_node() {
            let message = format!("{} asks what only services of the cluster may ask", caller.name);
            return Box::pin(async { Err(Error::new(Errno::EACCES, message).hint("use weft mount")) });
        }
        if self.open.is_set() {
            return self.service.handle_from(caller, request, payload);
        }
        Box::pin(async move {
            if rt::timeout(PATIENCE, self.open.wait()).await.is_none() {
                return Err(Error::new(
                    Errno::ETIMEDOUT,
                    "the service is still settling what an earlier run left",
                )
                .hint("its log says what it waits for"));
            }
            self.service.handle_from(caller, request, payload).await
        })
    }
}
