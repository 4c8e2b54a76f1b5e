//! A tap on a service: it passes requests on, unless a test interferes.

use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result};

type Predicate<Req> = Box<dyn Fn(&Req) -> bool + Send>;

type Change<Req, Rep> = Box<dyn Fn(&Req, Rep) -> Rep + Send>;

/// Passes requests on to a service.
pub(crate) struct Tap<Req, Rep> {
    service: Arc<dyn Handler<Req, Rep>>,
    state: Mutex<State<Req>>,
    /// Changes answers.
    changed: Mutex<Option<Change<Req, Rep>>>,
}

struct State<Req> {
    /// Each refuses one request.
    refusals: Vec<(Predicate<Req>, Errno)>,
    /// Each loses one answer.
    losses: Vec<Predicate<Req>>,
    delays: Vec<(Predicate<Req>, Duration)>,
    /// Delays of answers.
    late: Vec<(Predicate<Req>, Duration)>,
    /// Requests in the order of their answers, and whether they succeeded.
    answered: Vec<(Req, bool)>,
}

impl<Req: Clone, Rep> Tap<Req, Rep> {
    pub(crate) fn new(service: Arc<dyn Handler<Req, Rep>>) -> Arc<Tap<Req, Rep>> {
        let state = State {
            refusals: Vec::new(),
            losses: Vec::new(),
            delays: Vec::new(),
            late: Vec::new(),
            answered: Vec::new(),
        };
        Arc::new(Tap { service, state: Mutex::new(state), changed: Mutex::new(None) })
    }

    /// Answers the next matching request with an error, without passing it on.
    pub(crate) fn refuse_next(&self, errno: Errno, which: impl Fn(&Req) -> bool + Send + 'static) {
        self.state.lock().refusals.push((Box::new(which), errno));
    }

    /// Passes the next matching request on, and drops its answer.
    pub(crate) fn lose_next_answer(&self, which: impl Fn(&Req) -> bool + Send + 'static) {
        self.state.lock().losses.push(Box::new(which));
    }

    /// Delays all matching requests.
    pub(crate) fn delay(&self, time: Duration, which: impl Fn(&Req) -> bool + Send + 'static) {
        self.state.lock().delays.push((Box::new(which), time));
    }

    /// Delays the answers of all matching requests, so that they are outdated.
    pub(crate) fn delay_answers(&self, time: Duration, which: impl Fn(&Req) -> bool + Send + 'static) {
        self.state.lock().late.push((Box::new(which), time));
    }

    /// Changes all answers from now on.
    pub(crate) fn change_answers(&self, change: impl Fn(&Req, Rep) -> Rep + Send + 'static) {
        *self.changed.lock() = Some(Box::new(change));
    }

    /// Number of matching requests that were executed.
    pub(crate) fn succeeded(&self, which: impl Fn(&Req) -> bool) -> usize {
        self.state.lock().answered.iter().filter(|(request, ok)| *ok && which(request)).count()
    }

    /// Whether every requested refusal and loss has happened.
    pub(crate) fn has_refused_all(&self) -> bool {
        let state = self.state.lock();
        state.refusals.is_empty() && state.losses.is_empty()
    }

    async fn pass(&self, request: Req, payload: Option<IoBuf>) -> Result<Rep> {
        let delay = self.state.lock().delays.iter().find(|(which, _)| which(&request)).map(|(_, time)| *time);
        if let Some(delay) = delay {
            rt::sleep(delay).await;
        }
        let reply = match self.take_refusal(&request) {
            Some(errno) => Err(Error::new(errno, "refused by the test")),
            None => self.service.handle(request.clone(), payload).await,
        };
        let late = self.state.lock().late.iter().find(|(which, _)| which(&request)).map(|(_, time)| *time);
        if let Some(late) = late {
            rt::sleep(late).await;
        }
        let reply = match &*self.changed.lock() {
            Some(change) => reply.map(|reply| change(&request, reply)),
            None => reply,
        };
        let mut state = self.state.lock();
        state.answered.push((request.clone(), reply.is_ok()));
        match state.losses.iter().position(|which| which(&request)) {
            Some(at) => {
                drop(state.losses.swap_remove(at));
                Err(Error::new(Errno::ETIMEDOUT, "its answer was lost by the test"))
            }
            None => reply,
        }
    }

    fn take_refusal(&self, request: &Req) -> Option<Errno> {
        let mut state = self.state.lock();
        let at = state.refusals.iter().position(|(which, _)| which(request))?;
        Some(state.refusals.swap_remove(at).1)
    }
}

impl<Req: Clone + Send, Rep> Handler<Req, Rep> for Tap<Req, Rep> {
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        Box::pin(self.pass(request, payload))
    }
}
