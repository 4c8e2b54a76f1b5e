//! The clients that the service knows.

use crate::callers::Callers;
use crate::limits::{HEARD_GRAIN, MAX_SESSIONS, RECALLS_PER_ANSWER, REGISTRATIONS_AT_ONCE};
use crate::promises::Kept;
use crate::record::StoredReply;
use crate::replies::{Recorded, Replies};
use crate::view::store_error;
use kv::{Pair, Store, Ticket};
use namespace::leases::Asker;
use namespace::{Key, Writes, decode_key, keys};
use parking_lot::{Mutex, RwLock};
use prost::Message;
use rt::sync::Event;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use types::{Errno, Error, Export, HashMap, InodeId, Result, SessionId};
use wire::{LeaseMode, MetaOp, MetaReply, MetaRequest, Number, Recall};

/// How a session lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionKind {
    /// Of this very process, and ends with it. It gets no leases, and is never evicted.
    Local,
    /// Of another process. It gets leases, and has to be heard of. The answers to its changes are
    /// kept in the store, so that a request that is sent again after a restart of the service is
    /// not carried out twice.
    Remote,
}

pub(crate) struct Session {
    pub id: SessionId,
    pub kind: SessionKind,
    /// What its client has proved to be when it registered: [`net::Caller::holder`].
    pub holder: AtomicU64,
    /// When it registered last ([`Sessions::next_moment`]).
    pub registered: AtomicU64,
    replies: Mutex<Replies>,
    /// No request of it is carried out any more.
    ended: AtomicBool,
    /// Its files are settled, and its leases end or have ended.
    wound_up: AtomicBool,
    /// When it was last heard of, nanoseconds of the monotonic clock.
    heard_ns: AtomicU64,
    /// Number of its last recall.
    recalled: AtomicU64,
    /// Recalls that it has not told to have seen, in order. Leases bound them: each is recalled
    /// twice at most.
    recalls: Mutex<VecDeque<Recall>>,
    some_recalls: Event,
    /// Recalls up to this number are being worked on, as the session said last, and when that was.
    yielding: AtomicU64,
    yielding_ns: AtomicU64,
    /// Who its client is, as of its last registration over a connection.
    origin: Mutex<Origin>,
    /// What held for its last request by the rules for networks.
    export: RwLock<Export>,
    /// Users who had to be introduced.
    pub callers: Callers,
    /// Files that were made for it when it came back.
    pub kept: Kept,
}

/// The client of a session.
#[derive(Clone, Default)]
pub(crate) struct Origin {
    /// What it has proved to be, or calls itself where nothing is proved.
    pub client: String,
    /// What it says its machine and process are.
    pub host: String,
    /// Where it connects from.
    pub address: String,
}

pub(crate) struct Sessions {
    by_id: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// Sessions that were evicted, and when, seconds of the time of day: their ids are refused
    /// until nobody can come back under them.
    evicted: RwLock<BTreeMap<SessionId, i64>>,
    registrations: Vec<rt::sync::RwLock>,
    /// The last number of [`Sessions::next_moment`].
    moment: AtomicU64,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let registrations = (0..REGISTRATIONS_AT_ONCE).map(|_| rt::sync::RwLock::new()).collect();
        Sessions {
            by_id: RwLock::default(),
            evicted: RwLock::default(),
            registrations,
            moment: AtomicU64::new(0),
        }
    }
}

impl Sessions {
    /// Whether a request of this session would make it known.
    pub fn is_unknown(&self, id: SessionId) -> bool {
        !self.by_id.read().contains_key(&id) && !self.evicted.read().contains_key(&id)
    }

    /// The session, made known by its first request if it was not registered.
    ///
    /// Errors: `ESTALE` for one that was evicted.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>> {
        let known = self.by_id.read().get(&id).cloned();
        match known {
            Some(session) => session.check().map(|()| session),
            None if self.evicted.read().contains_key(&id) => Err(has_been_ended(id)),
            None => self.insert(Arc::new(Session::new(id, SessionKind::Local))),
        }
    }

    /// `ESTALE` for the id of a session that was evicted.
    pub fn check_id(&self, id: SessionId) -> Result<()> {
        if self.evicted.read().contains_key(&id) { Err(has_been_ended(id)) } else { Ok(()) }
    }

    /// A number that is larger than all before.
    pub fn next_moment(&self) -> u64 {
        self.moment.fetch_add(1, Relaxed) + 1
    }

    /// To be taken by who registers a session, or has it follow partitions, so that two copies of
    /// the request come one after the other.
    pub fn turn_to_register(&self, id: SessionId) -> &rt::sync::RwLock {
        &self.registrations[id.0 as usize % REGISTRATIONS_AT_ONCE]
    }

    /// Whether a session of another process is known.
    pub fn is_remote(&self, id: SessionId) -> bool {
        self.find(id).is_some_and(|session| session.is_remote())
    }

    /// The session if it is known, whatever its state.
    pub fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        self.by_id.read().get(&id).cloned()
    }

    /// Makes a session known whose life ends with this process.
    pub fn register_local(&self, id: SessionId) -> Result<Arc<Session>> {
        self.by_id.write().remove(&id);
        self.insert(Arc::new(Session::new(id, SessionKind::Local)))
    }

    /// Makes a session of another process known, with the answers that are in the store
    /// ([`stored_answers`]). Those of one that is known, too: they may have been given by another
    /// service, whose partitions this one has adopted.
    pub fn register_remote(&self, id: SessionId, answers: Vec<Pair>) -> Result<Arc<Session>> {
        self.check_id(id)?;
        let known = self.find(id).filter(|session| session.kind == SessionKind::Remote);
        if let Some(session) = &known {
            session.check()?;
            session.recalls.lock().clear();
            session.hear();
        }
        let session = match &known {
            Some(session) => session.clone(),
            None => Arc::new(Session::new(id, SessionKind::Remote)),
        };
        session.take_answers(answers);
        if known.is_some() {
            return Ok(session);
        }
        self.by_id.write().remove(&id);
        self.insert(session)
    }

    /// Forgets a session that has ended in good order.
    pub fn remove(&self, id: SessionId) {
        self.by_id.write().remove(&id);
    }

    /// Refuses a session from now on. What it has stays until it is wound up.
    pub fn refuse(&self, id: SessionId) {
        self.evicted.write().entry(id).or_insert(rt::now().secs);
        if let Some(session) = self.find(id) {
            session.end();
        }
    }

    /// Forgets a session but for its id.
    pub fn bury(&self, id: SessionId) {
        self.evicted.write().entry(id).or_insert(rt::now().secs);
        self.by_id.write().remove(&id);
    }

    /// Forgets ids of sessions that were ended: those that are old.
    pub fn exhume(&self, is_old: impl Fn(SessionId, i64) -> bool) {
        self.evicted.write().retain(|id, ended_s| !is_old(*id, *ended_s));
    }

    pub fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// Takes all sessions for alive.
    pub fn hear_all(&self) {
        self.by_id.read().values().for_each(|session| session.hear());
    }

    /// Sessions of other processes that were last heard of before a time.
    pub fn silent_since(&self, time_ns: u64) -> Vec<SessionId> {
        let by_id = self.by_id.read();
        let silent = by_id.values().filter(|session| {
            session.kind == SessionKind::Remote && !session.is_ended() && session.heard_ns() < time_ns
        });
        let mut silent: Vec<SessionId> = silent.map(|session| session.id).collect();
        silent.sort_unstable();
        silent
    }

    /// Something of every session.
    pub fn map_all<T>(&self, of: impl Fn(&Session) -> T) -> Vec<T> {
        self.by_id.read().values().map(|session| of(session)).collect()
    }

    /// Sends a session a recall and returns its number; 0 for one that is gone, whose leases are
    /// about to go, too.
    pub fn recall(&self, id: SessionId, ino: InodeId, keep: Option<LeaseMode>) -> u64 {
        let Some(session) = self.find(id) else { return 0 };
        let number = {
            let mut recalls = session.recalls.lock();
            let number = session.recalled.fetch_add(1, Relaxed) + 1;
            recalls.push_back(Recall { number, ino, keep });
            number
        };
        session.some_recalls.set();
        number
    }

    fn insert(&self, session: Arc<Session>) -> Result<Arc<Session>> {
        let mut by_id = self.by_id.write();
        if by_id.len() >= MAX_SESSIONS && !by_id.contains_key(&session.id) {
            let message = format!("{MAX_SESSIONS} sessions are open, session {} is one too many", session.id);
            return Err(Error::new(Errno::EBUSY, message).hint("unmount clients that are not needed"));
        }
        Ok(by_id.entry(session.id).or_insert(session).clone())
    }
}

/// The records of the last answers that a session got, one a lane.
pub(crate) async fn stored_answers(store: &Store, id: SessionId) -> Result<Vec<Pair>> {
    let range = keys::operations_of(id);
    let stored = store.scan(&range.from, &range.to, usize::MAX).await;
    stored.map_err(|error| store_error(&error))
}

impl Session {
    pub fn new(id: SessionId, kind: SessionKind) -> Session {
        Session {
            id,
            kind,
            holder: AtomicU64::new(0),
            registered: AtomicU64::new(0),
            replies: Mutex::default(),
            ended: AtomicBool::new(false),
            wound_up: AtomicBool::new(false),
            heard_ns: AtomicU64::new(rt::monotonic_ns()),
            recalled: AtomicU64::new(0),
            recalls: Mutex::default(),
            some_recalls: Event::new(),
            yielding: AtomicU64::new(0),
            yielding_ns: AtomicU64::new(0),
            origin: Mutex::default(),
            export: RwLock::default(),
            callers: Callers::default(),
            kept: Kept::default(),
        }
    }

    /// `ESTALE` when it was ended.
    pub fn check(&self) -> Result<()> {
        if self.is_ended() { Err(has_been_ended(self.id)) } else { Ok(()) }
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Ends it for new requests; false if somebody else has done so.
    pub fn end(&self) -> bool {
        let is_first = !self.ended.swap(true, Relaxed);
        self.some_recalls.set();
        is_first
    }

    /// All that it wrote is settled, or kept shut: its leases go now. To be called before they do.
    pub fn wind_up(&self) {
        self.wound_up.store(true, Release);
    }

    /// Whether its leases keep nobody from anything any more. While this is false the end of its
    /// leases is still to come.
    pub fn is_wound_up(&self) -> bool {
        self.wound_up.load(Acquire)
    }

    pub fn is_remote(&self) -> bool {
        self.kind == SessionKind::Remote
    }

    /// Lets a wait for recalls return.
    pub fn wake(&self) {
        self.some_recalls.set();
    }

    /// Notes who has registered it, and from where.
    pub fn comes_from(&self, caller: &net::Caller) {
        *self.origin.lock() = Origin {
            client: caller.name.clone(),
            host: caller.host.clone(),
            address: caller.address.to_string(),
        };
    }

    /// Who its client is; empty where that isn't known.
    pub fn origin(&self) -> Origin {
        self.origin.lock().clone()
    }

    /// Notes what holds for it by the rules for networks.
    pub fn set_export(&self, export: Export) {
        if self.export() != export {
            *self.export.write() = export;
        }
    }

    /// What holds for it.
    pub fn export(&self) -> Export {
        *self.export.read()
    }

    /// Notes that the session lives.
    pub fn hear(&self) {
        let now_ns = rt::monotonic_ns();
        if now_ns.saturating_sub(self.heard_ns()) >= HEARD_GRAIN.as_nanos() as u64 {
            self.heard_ns.store(now_ns, Relaxed);
        }
    }

    /// When it was last heard of.
    pub fn heard_ns(&self) -> u64 {
        self.heard_ns.load(Relaxed)
    }

    /// The session says that it works on its recalls up to a number.
    pub fn is_yielding(&self, seen: u64) -> MetaReply {
        self.yielding.store(seen, Relaxed);
        self.yielding_ns.store(rt::monotonic_ns(), Relaxed);
        MetaReply::Unit
    }

    /// When it said last that it works on a recall; `None` when it didn't.
    pub fn yielding_since_ns(&self, recall: u64) -> Option<u64> {
        (recall <= self.yielding.load(Relaxed)).then(|| self.yielding_ns.load(Relaxed))
    }

    /// Whether it has told to have seen a recall.
    pub fn has_seen(&self, recall: u64) -> bool {
        let unseen = self.recalls.lock().front().is_some_and(|first| first.number <= recall);
        !unseen || recall <= self.yielding.load(Relaxed)
    }

    /// The session as one that asks for leases. Recalls made from now on have larger numbers than
    /// this tells.
    pub fn asker(&self) -> Asker {
        let recalls = self.recalled.load(Relaxed);
        Asker { session: self.id, recalls, now_ns: rt::monotonic_ns(), answers: self.is_remote() }
    }

    /// Recalls with numbers above `after`, in order, at most [`RECALLS_PER_ANSWER`]. Those up to
    /// `after` have been seen and are forgotten.
    pub fn recalls_after(&self, after: u64) -> Vec<Recall> {
        let mut recalls = self.recalls.lock();
        while recalls.front().is_some_and(|recall| recall.number <= after) {
            recalls.pop_front();
        }
        if recalls.is_empty() {
            self.some_recalls.clear();
        }
        recalls.iter().take(RECALLS_PER_ANSWER).copied().collect()
    }

    /// Waits until there may be recalls.
    pub async fn wait_for_recalls(&self) {
        self.some_recalls.wait().await;
    }

    /// Takes over the answers that are in the store ([`stored_answers`]) and not known here: of an
    /// earlier run, or of another service.
    pub fn take_answers(&self, answers: Vec<Pair>) {
        let mut replies = self.replies.lock();
        for (key, value) in answers {
            let Some(Key::Operation { lane, .. }) = decode_key(&key) else { continue };
            let Ok(stored) = StoredReply::decode(value) else { continue };
            if let (Ok(lane), Some(reply)) = (u32::try_from(lane), stored.reply()) {
                let number = Number { lane, sequence: stored.sequence };
                replies.keep(number, Recorded { reply, ticket: None });
            }
        }
    }

    /// The answer that this request got when it came before.
    ///
    /// Errors: those of [`Replies::get`].
    pub fn recorded(&self, number: Option<Number>) -> Result<Option<Recorded>> {
        number.map_or(Ok(None), |number| self.replies.lock().get(number))
    }

    /// Keeps an answer in memory.
    pub fn record(&self, number: Option<Number>, reply: &MetaReply, ticket: &Ticket) {
        if let Some(number) = number {
            let recorded = Recorded { reply: reply.clone(), ticket: Some(ticket.clone()) };
            self.replies.lock().keep(number, recorded);
        }
    }

    /// Adds the record of an answer to the writes of its request. It takes the place of the one
    /// before in its lane.
    pub fn record_durably(&self, request: &MetaRequest, reply: &MetaReply, writes: &mut Writes) {
        let is_kept = self.is_remote() && !writes.is_empty();
        let Some(Number { lane, sequence }) = request.number.filter(|_| is_kept) else { return };
        let reply = match request.op {
            // Another service must not do it again: others may have made the file longer meanwhile.
            // What else it said was true under a lease of this service.
            MetaOp::Truncate { .. } => &MetaReply::Unit,
            _ => reply,
        };
        if let Some(stored) = StoredReply::of(reply, sequence) {
            writes.push((keys::operation(self.id, lane), Some(stored.encode_to_vec().into())));
        }
    }
}

fn has_been_ended(id: SessionId) -> Error {
    let message = format!(
        "session {id} has been ended: it was not heard of or gave up no lease in time, or was evicted"
    );
    Error::new(Errno::ESTALE, message).hint("its client begins another one by itself")
}
