//! Lookups while other sessions change the directory.

use crate::support::{Client, errno, open};
use bytes::Bytes;
use kv::{Batch, Durability, Engine, KvError, Memory, Outcome, Pair, Writer};
use meta::MetaService;
use parking_lot::{Condvar, Mutex};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use types::{Errno, InodeId, Result, SetAttr};
use wire::{MetaOp, MetaReply};

/// A store whose commits can be blocked.
#[derive(Default)]
struct Gate {
    memory: Memory,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_blocked: bool,
    waiting: bool,
}

impl Gate {
    fn set_blocked(&self, is_blocked: bool) {
        self.state.lock().is_blocked = is_blocked;
        self.changed.notify_all();
    }

    fn wait_for_a_commit(&self) {
        let mut state = self.state.lock();
        while !state.waiting {
            self.changed.wait(&mut state);
        }
    }
}

impl Engine for Gate {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Bytes>, KvError> {
        self.memory.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> std::result::Result<Vec<Pair>, KvError> {
        self.memory.scan(from, to, limit)
    }

    fn apply(&self, batches: &[Batch]) -> std::result::Result<Vec<Outcome>, KvError> {
        let mut state = self.state.lock();
        while state.is_blocked {
            state.waiting = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        state.waiting = false;
        drop(state);
        self.memory.apply(batches)
    }

    fn persist(&self) -> std::result::Result<(), KvError> {
        self.memory.persist()
    }
}

/// A service with a file in the root directory, whose committed state is cached.
fn serve() -> (Arc<Gate>, Arc<MetaService>) {
    let gate = Arc::new(Gate::default());
    let writer = Arc::new(Writer::new(gate.clone(), Durability::Process));
    let meta = rt::block_on(open(writer)).unwrap();
    let client = Client::new(&meta, 1);
    rt::block_on(async move {
        client.create(InodeId::ROOT, "first").await.unwrap();
        client.lookup(InodeId::ROOT, "first").await.unwrap();
    })
    .unwrap();
    (gate, meta)
}

/// How often a request is polled before it counts as waiting for another thread.
const POLLS: usize = 1000;

/// Time-out of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A request under way.
struct RunningRequest<T> {
    thread: JoinHandle<T>,
    /// Reports when the request waits for another thread, and when it has its answer.
    state: Receiver<RequestState>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    Answered,
    Waits,
}

/// A request in a session and a thread of its own: the committing thread may be blocked.
fn start_request<T: Send + 'static>(
    meta: &Arc<MetaService>,
    session: u64,
    ask: impl AsyncFnOnce(Client) -> T + Send + 'static,
) -> RunningRequest<T> {
    let meta = meta.clone();
    let (report, state) = channel();
    let run =
        move || rt::block_on(async move { poll_and_report(ask(Client::new(&meta, session)), &report).await });
    RunningRequest { thread: thread::spawn(move || run().unwrap()), state }
}

/// The outcome of a request; reports its state.
async fn poll_and_report<T>(request: impl Future<Output = T>, report: &Sender<RequestState>) -> T {
    let mut request = pin!(request);
    for _ in 0..POLLS {
        let now = poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = now {
            report.send(RequestState::Answered).unwrap();
            return answer;
        }
        rt::yield_now().await;
    }
    report.send(RequestState::Waits).unwrap();
    let answer = request.await;
    report.send(RequestState::Answered).unwrap();
    answer
}

impl<T> RunningRequest<T> {
    /// The answer, which must not wait for a commit.
    fn answer_without_commit(self) -> T {
        while self.state.recv_timeout(TIMEOUT).expect("it waits for a commit of others")
            != RequestState::Answered
        {}
        self.answer()
    }

    /// Whether the request waits for another thread; returns when that is known.
    fn waits(&self) -> bool {
        self.state.recv_timeout(TIMEOUT) == Ok(RequestState::Waits) && !self.thread.is_finished()
    }

    fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    fn answer(self) -> T {
        self.thread.join().unwrap()
    }
}

#[test]
fn a_negative_lookup_does_not_wait_for_other_creates() {
    let (gate, meta) = serve();
    gate.set_blocked(true);
    let maker = start_request(&meta, 2, async |client| client.create(InodeId::ROOT, "held").await);
    gate.wait_for_a_commit();
    let lookup = start_request(&meta, 3, async |client| errno(client.lookup(InodeId::ROOT, "other").await));
    assert_eq!(lookup.answer_without_commit(), Errno::ENOENT);
    let first = start_request(&meta, 3, async |client| client.lookup(InodeId::ROOT, "first").await);
    assert!(first.answer_without_commit().is_ok());
    // Lookups of the name that is being created, and of the directory's attributes, do wait.
    let held = start_request(&meta, 4, async |client| client.lookup(InodeId::ROOT, "held").await);
    let attr = start_request(&meta, 5, async |client| client.getattr(InodeId::ROOT).await);
    assert!(held.waits() && attr.waits() && !maker.is_finished());
    gate.set_blocked(false);
    let made = maker.answer().unwrap();
    assert_eq!(held.answer().unwrap().ino, made.ino);
    assert!(attr.answer().unwrap().mtime >= made.mtime);
}

#[test]
fn a_lookup_waits_for_permission_changes() {
    let (gate, meta) = serve();
    gate.set_blocked(true);
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let setter = start_request(&meta, 2, async move |client| -> Result<MetaReply> {
        client.call(MetaOp::Setattr { ino: InodeId::ROOT, set }).await
    });
    gate.wait_for_a_commit();
    let lookup = start_request(&meta, 3, async |client| errno(client.lookup(InodeId::ROOT, "other").await));
    assert!(lookup.waits());
    gate.set_blocked(false);
    assert!(setter.answer().is_ok());
    assert_eq!(lookup.answer(), Errno::ENOENT);
}
