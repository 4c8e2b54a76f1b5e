//! A service in another process.

use super::calls::CallOutcome;
use super::connection::{Connection, OutgoingRequest};
use super::core_link::Link;
use super::peer::Peer;
use crate::{Distance, Handler, LocalFuture};
use rt::Either;
use rt::IoBuf;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{Epoch, Errno, Error, Result};
use wire::frame::{MAX_BODY_BYTES, MAX_PAYLOAD_BYTES};
use wire::{AnswerKind, Message, Request};

/// Sends requests to a peer.
pub(crate) struct RemoteService {
    peer: Arc<Peer>,
}

impl RemoteService {
    pub(crate) fn new(peer: Arc<Peer>) -> RemoteService {
        RemoteService { peer }
    }

    /// Calls the service. `on` receives the connection that the call is on.
    async fn call<Req: Request, Rep: Message>(
        &self,
        request: Req,
        payload: Option<IoBuf>,
        on: Option<&RefCell<Option<Rc<Connection>>>>,
    ) -> Result<Rep> {
        let link = Link::of(self.peer.shared());
        let mut body = link.take_body();
        request.encode(&mut body);
        check_size(self.peer.name(), body.len(), payload.as_ref())?;
        let answer = request.answer_kind();
        let timeout = self.peer.shared().options.timeout;
        let mut outgoing = OutgoingRequest {
            service: Req::SERVICE,
            answer,
            epoch: Epoch(link.shared.epoch.load(Ordering::Relaxed)),
            payload,
            verifies_checksum: types::checksums_enabled(),
            deadline_ns: match answer {
                AnswerKind::Unbounded => u64::MAX,
                AnswerKind::NoPayload | AnswerKind::FillsPayload => {
                    rt::monotonic_ns().saturating_add(timeout.as_nanos() as u64)
                }
            },
        };
        loop {
            let connection = link.connection(outgoing.left()).await?;
            if let Some(on) = on {
                on.replace(Some(connection.clone()));
            }
            match connection.exchange(&outgoing, body).await {
                CallOutcome::Reply(reply) => {
                    let decoded = Rep::decode(&reply);
                    link.return_body(reply);
                    return Ok(decoded?);
                }
                CallOutcome::Failed(error) => return Err(wire::error_of(Req::SERVICE, error)),
                CallOutcome::TimedOut => return Err(link.timed_out()),
                CallOutcome::ChecksumMismatch => {
                    // Then the server verifies the data itself: it may have been read while it was
                    // written, or be damaged.
                    outgoing.verifies_checksum = false;
                    body = link.take_body();
                    request.encode(&mut body);
                }
                CallOutcome::Lost => {
                    body = link.take_body();
                    request.encode(&mut body);
                    if outgoing.left().is_zero() {
                        return Err(link.timed_out());
                    }
                }
            }
        }
    }

    async fn call_or_abandon<Req: Request, Rep: Message>(
        &self,
        given_up: LocalFuture<'_, ()>,
        request: Req,
        payload: Option<IoBuf>,
    ) -> Option<Result<Rep>> {
        let on = RefCell::new(None);
        let call = self.call(request, payload, Some(&on));
        match rt::select(call, given_up).await {
            Either::First(answer) => Some(answer),
            Either::Second(()) => {
                // A call that is dropped while its payload is being transferred has ended its
                // connection.
                let connection: Option<Rc<Connection>> = on.take();
                if let Some(connection) = connection {
                    connection.wait_until_released().await;
                }
                None
            }
        }
    }
}

fn check_size(peer: &str, body: usize, payload: Option<&IoBuf>) -> Result<()> {
    let payload = payload.map_or(0, IoBuf::len);
    if body > MAX_BODY_BYTES as usize || payload > MAX_PAYLOAD_BYTES as usize {
        let message = format!(
            "a request to {peer} has {body} bytes and {payload} of data, \
            at most {MAX_BODY_BYTES} and {MAX_PAYLOAD_BYTES} are allowed"
        );
        return Err(Error::new(Errno::E2BIG, message));
    }
    Ok(())
}

impl<Req: Request + 'static, Rep: Message + 'static> Handler<Req, Rep> for RemoteService {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        Box::pin(self.call(request, payload, None))
    }

    fn handle_or_abandon<'a>(
        &'a self,
        given_up: LocalFuture<'a, ()>,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Option<Result<Rep>>>
    where
        Rep: 'a,
    {
        Box::pin(self.call_or_abandon(given_up, request, payload))
    }

    fn distance(&self) -> Distance {
        self.peer.distance()
    }
}
