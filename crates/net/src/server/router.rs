//! Dispatches requests to the handlers of their services.

use crate::{Caller, Deadline, Handler, LocalFuture};
use rt::IoBuf;
use std::rc::Rc;
use std::sync::Arc;
use types::Result;
use wire::authorization::AuthorizationRule;
use wire::{AnswerKind, Malformed, Message, Request};

/// Upper bound of service numbers, exclusive.
const SERVICES: usize = 8;

/// The services of a server.
#[derive(Default)]
pub struct Router {
    routes: [Option<Arc<dyn Route>>; SERVICES],
}

impl Router {
    /// A router without services.
    pub fn new() -> Router {
        Router::default()
    }

    /// Adds a service; replaces one of the same kind.
    pub fn with<Req, Rep>(mut self, handler: Arc<dyn Handler<Req, Rep>>) -> Router
    where
        Req: Request + 'static,
        Rep: Message + 'static,
    {
        self.routes[Req::SERVICE as usize] = Some(Arc::new(HandlerRoute { handler }));
        self
    }

    /// The route to a service, by its number in a header.
    pub(super) fn route(&self, service: u8) -> Option<&dyn Route> {
        self.routes.get(service as usize)?.as_deref()
    }
}

/// Executes a request of a caller, with its payload; returns the body of the reply.
type Run = dyn FnOnce(Rc<Caller>, Deadline, Option<IoBuf>) -> LocalFuture<'static, Result<Vec<u8>>>;

/// A decoded request, ready to run.
pub(super) struct PreparedRequest {
    /// Whether the answer has a payload, and whether the request may wait.
    pub(super) answer: AnswerKind,
    /// Who may send the request.
    pub(super) rule: AuthorizationRule,
    /// Executes it.
    pub(super) run: Box<Run>,
}

/// The route to one service.
pub(super) trait Route: Send + Sync {
    /// Decodes a request.
    fn decode(&self, body: &[u8]) -> Result<PreparedRequest, Malformed>;
}

struct HandlerRoute<Req, Rep> {
    handler: Arc<dyn Handler<Req, Rep>>,
}

impl<Req: Request + 'static, Rep: Message + 'static> Route for HandlerRoute<Req, Rep> {
    fn decode(&self, body: &[u8]) -> Result<PreparedRequest, Malformed> {
        let request = Req::decode(body)?;
        let (answer, rule) = (request.answer_kind(), request.rule());
        let handler = self.handler.clone();
        let run = move |caller: Rc<Caller>, deadline, payload| -> LocalFuture<'static, Result<Vec<u8>>> {
            Box::pin(async move {
                let reply = handler.handle_with_deadline(&caller, deadline, request, payload).await?;
                let mut body = Vec::new();
                reply.encode(&mut body);
                Ok(body)
            })
        };
        Ok(PreparedRequest { answer, rule, run: Box::new(run) })
    }
}
