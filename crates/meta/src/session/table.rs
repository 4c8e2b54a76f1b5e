//! The sessions that the service knows.

use crate::limits::{CONTACT_INTERVAL, MAX_CONCURRENT_REGISTRATIONS, MAX_SESSIONS, RECALLS_PER_ANSWER};
use crate::session::async_changes::ReplayedCreates;
use crate::session::reply_cache::{CachedReply, ReplyCache};
use crate::session::users::SessionUsers;
use crate::store::record::StoredReply;
use kv::{Pair, Ticket};
use namespace::leases::{LeaseKey, Requester};
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
use types::{Errno, Error, Export, HashMap, Result, SessionId};
use wire::{LeaseMode, MetaOp, MetaReply, MetaRequest, Recall, SlotSequence};

/// Lifetime of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionKind {
    /// A session of this process, which ends with it. It gets no leases and is never evicted.
    Local,
    /// A session of another process. It gets leases, and has to stay reachable. The store keeps the
    /// answers to its changes, so that a request that is retransmitted after a restart of the
    /// service is not executed twice.
    Remote,
}

pub(crate) struct Session {
    pub id: SessionId,
    pub kind: SessionKind,
    /// Identity that the client proved when it registered: [`net::Caller::holder`].
    pub holder: AtomicU64,
    /// When the session registered last ([`Sessions::next_sequence`]).
    pub registered: AtomicU64,
    replies: Mutex<ReplyCache>,
    /// The service executes no more requests of the session.
    ended: AtomicBool,
    /// Size recovery of its files is complete or they are in quarantine; its leases end or have
    /// ended.
    end_completed: AtomicBool,
    /// When the last message of the session arrived, in nanoseconds of the monotonic clock.
    last_contact_ns: AtomicU64,
    /// Number of the last recall sent to the session.
    last_recall: AtomicU64,
    /// Recalls that the session has not confirmed yet, in order. Bounded by its leases: each is
    /// recalled at most twice.
    recalls: Mutex<VecDeque<Recall>>,
    recalls_ready: Event,
    /// The session works on recalls up to this number, by its last message; and when that arrived.
    working_up_to: AtomicU64,
    working_ns: AtomicU64,
    /// The session's client, as of its last registration over a connection.
    client_info: Mutex<ClientInfo>,
    /// Access rules that applied to its last request.
    export: RwLock<Export>,
    /// Users whose groups the client has reported.
    pub users: SessionUsers,
    /// Files that were created for the session when it registered again.
    pub replayed_creates: ReplayedCreates,
}

/// The client of a session.
#[derive(Clone, Default)]
pub(crate) struct ClientInfo {
    /// Identity that the client has proved, or its own name where none is proved.
    pub client: String,
    /// Machine and process, as the client reports them.
    pub host: String,
    /// Address that the client connects from.
    pub address: String,
}

pub(crate) struct Sessions {
    by_id: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// Evicted sessions, and when, in seconds since 1970. Their ids are refused until no client can
    /// return with them.
    evicted: RwLock<BTreeMap<SessionId, i64>>,
    registration_locks: Vec<rt::sync::RwLock>,
    /// The last number of [`Sessions::next_sequence`].
    last_sequence: AtomicU64,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let registrations = (0..MAX_CONCURRENT_REGISTRATIONS).map(|_| rt::sync::RwLock::new()).collect();
        Sessions {
            by_id: RwLock::default(),
            evicted: RwLock::default(),
            registration_locks: registrations,
            last_sequence: AtomicU64::new(0),
        }
    }
}

impl Sessions {
    /// Whether a request of this session would create it.
    pub fn is_unknown(&self, id: SessionId) -> bool {
        !self.by_id.read().contains_key(&id) && !self.evicted.read().contains_key(&id)
    }

    /// Returns the session, and creates it if it was not registered.
    ///
    /// Errors: `ESTALE` for an evicted session.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>> {
        let known = self.by_id.read().get(&id).cloned();
        match known {
            Some(session) => session.check().map(|()| session),
            None if self.evicted.read().contains_key(&id) => Err(evicted_error(id)),
            None => self.insert(Arc::new(Session::new(id, SessionKind::Local))),
        }
    }

    /// `ESTALE` for the id of an evicted session.
    pub fn check_id(&self, id: SessionId) -> Result<()> {
        if self.evicted.read().contains_key(&id) { Err(evicted_error(id)) } else { Ok(()) }
    }

    /// Returns a number that is larger than all before.
    pub fn next_sequence(&self) -> u64 {
        self.last_sequence.fetch_add(1, Relaxed) + 1
    }

    /// Lock for the registration of a session, and for its reclaim of partitions, so that a
    /// retransmission runs after the original.
    pub fn registration_lock(&self, id: SessionId) -> &rt::sync::RwLock {
        &self.registration_locks[id.0 as usize % MAX_CONCURRENT_REGISTRATIONS]
    }

    /// Whether a session of another process is known.
    pub fn is_remote(&self, id: SessionId) -> bool {
        self.find(id).is_some_and(|session| session.is_remote())
    }

    /// Whether a session is this service's own. Such a session releases its leases by itself and is
    /// never evicted for them.
    pub fn is_own(&self, id: SessionId) -> bool {
        self.find(id).is_some_and(|session| !session.is_remote())
    }

    /// Whether a session that this service doesn't know ends itself. Either it did so before and
    /// the answer was lost, or the service restarted. It needn't register for that.
    ///
    /// # Errors
    /// `ESTALE` for an evicted session: its last writes may not have been accepted.
    pub fn is_unmount_of_unknown_session(&self, request: &MetaRequest) -> Result<bool> {
        let id = request.session;
        if !matches!(request.op, MetaOp::EndSession) || id == SessionId(0) {
            return Ok(false);
        }
        self.check_id(id)?;
        Ok(self.find(id).is_none())
    }

    /// Returns the session if it is known, whatever its state.
    pub fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        self.by_id.read().get(&id).cloned()
    }

    /// Registers a session that ends with this process.
    pub fn register_local(&self, id: SessionId) -> Result<Arc<Session>> {
        self.by_id.write().remove(&id);
        self.insert(Arc::new(Session::new(id, SessionKind::Local)))
    }

    /// Registers a session of another process, with its answers from the store
    /// (`SessionRecords::replies`). Also adds those to a known session: another service, whose
    /// partitions this one has adopted, may have given them.
    pub fn register_remote(&self, id: SessionId, answers: Vec<Pair>) -> Result<Arc<Session>> {
        self.check_id(id)?;
        let known = self.find(id).filter(|session| session.kind == SessionKind::Remote);
        if let Some(session) = &known {
            session.check()?;
            session.recalls.lock().clear();
            session.note_contact();
        }
        let session = match &known {
            Some(session) => session.clone(),
            None => Arc::new(Session::new(id, SessionKind::Remote)),
        };
        session.restore_replies(answers);
        if known.is_some() {
            return Ok(session);
        }
        self.by_id.write().remove(&id);
        self.insert(session)
    }

    /// Removes a session that has ended cleanly.
    pub fn remove(&self, id: SessionId) {
        self.by_id.write().remove(&id);
    }

    /// Refuses requests of a session from now on. Its state stays until its end is complete.
    pub fn mark_evicted(&self, id: SessionId) {
        self.evicted.write().entry(id).or_insert(rt::now().secs);
        if let Some(session) = self.find(id) {
            session.end();
        }
    }

    /// Removes a session; only its id is retained.
    pub fn keep_id_only(&self, id: SessionId) {
        self.evicted.write().entry(id).or_insert(rt::now().secs);
        self.by_id.write().remove(&id);
    }

    /// Removes ids of evicted sessions for which `is_old` is true.
    pub fn forget_evicted(&self, is_old: impl Fn(SessionId, i64) -> bool) {
        self.evicted.write().retain(|id, ended_s| !is_old(*id, *ended_s));
    }

    pub fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// Marks all sessions as alive.
    pub fn note_contact_of_all(&self) {
        self.by_id.read().values().for_each(|session| session.note_contact());
    }

    /// Sessions of other processes whose last message arrived before a time.
    pub fn unreachable_since(&self, time_ns: u64) -> Vec<SessionId> {
        let by_id = self.by_id.read();
        let unreachable = by_id.values().filter(|session| {
            session.kind == SessionKind::Remote && !session.is_ended() && session.last_contact_ns() < time_ns
        });
        let mut unreachable: Vec<SessionId> = unreachable.map(|session| session.id).collect();
        unreachable.sort_unstable();
        unreachable
    }

    /// Applies `of` to every session.
    pub fn map_all<T>(&self, of: impl Fn(&Session) -> T) -> Vec<T> {
        self.by_id.read().values().map(|session| of(session)).collect()
    }

    /// Sends a session a recall and returns its number; 0 for a session that has ended, whose
    /// leases are about to end, too.
    pub fn recall(&self, id: SessionId, key: LeaseKey, keep: Option<LeaseMode>) -> u64 {
        let Some(session) = self.find(id) else { return 0 };
        let number = {
            let mut recalls = session.recalls.lock();
            let number = session.last_recall.fetch_add(1, Relaxed) + 1;
            recalls.push_back(Recall { number, ino: key.number(), retain: keep });
            number
        };
        session.recalls_ready.set();
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

impl Session {
    pub fn new(id: SessionId, kind: SessionKind) -> Session {
        Session {
            id,
            kind,
            holder: AtomicU64::new(0),
            registered: AtomicU64::new(0),
            replies: Mutex::default(),
            ended: AtomicBool::new(false),
            end_completed: AtomicBool::new(false),
            last_contact_ns: AtomicU64::new(rt::monotonic_ns()),
            last_recall: AtomicU64::new(0),
            recalls: Mutex::default(),
            recalls_ready: Event::new(),
            working_up_to: AtomicU64::new(0),
            working_ns: AtomicU64::new(0),
            client_info: Mutex::default(),
            export: RwLock::default(),
            users: SessionUsers::default(),
            replayed_creates: ReplayedCreates::default(),
        }
    }

    /// `ESTALE` if the session has ended.
    pub fn check(&self) -> Result<()> {
        if self.is_ended() { Err(evicted_error(self.id)) } else { Ok(()) }
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Ends the session for new requests; returns false if that has happened before.
    pub fn end(&self) -> bool {
        let is_first = !self.ended.swap(true, Relaxed);
        self.recalls_ready.set();
        is_first
    }

    /// Notes that size recovery of its files is complete, or they are in quarantine: its leases end
    /// now. Call it before they do.
    pub fn complete_end(&self) {
        self.end_completed.store(true, Release);
    }

    /// Whether the session's leases block no other session any more. While this is false, the end
    /// of its leases is still to come.
    pub fn has_completed_end(&self) -> bool {
        self.end_completed.load(Acquire)
    }

    pub fn is_remote(&self) -> bool {
        self.kind == SessionKind::Remote
    }

    /// Makes a wait for recalls return.
    pub fn wake(&self) {
        self.recalls_ready.set();
    }

    /// Records the client that registered the session, and its address.
    pub fn set_client_info(&self, caller: &net::Caller) {
        *self.client_info.lock() = ClientInfo {
            client: caller.name.clone(),
            host: caller.host.clone(),
            address: caller.address.to_string(),
        };
    }

    /// The session's client; empty if unknown.
    pub fn client_info(&self) -> ClientInfo {
        self.client_info.lock().clone()
    }

    /// Sets the access rules of the session's network.
    pub fn set_export(&self, export: Export) {
        if self.export() != export {
            *self.export.write() = export;
        }
    }

    /// The access rules that apply to the session.
    pub fn export(&self) -> Export {
        *self.export.read()
    }

    /// Notes that the session is alive.
    pub fn note_contact(&self) {
        let now_ns = rt::monotonic_ns();
        if now_ns.saturating_sub(self.last_contact_ns()) >= CONTACT_INTERVAL.as_nanos() as u64 {
            self.last_contact_ns.store(now_ns, Relaxed);
        }
    }

    /// When the last message of the session arrived.
    pub fn last_contact_ns(&self) -> u64 {
        self.last_contact_ns.load(Relaxed)
    }

    /// Notes that the session works on its recalls up to a number.
    pub fn note_working(&self, seen: u64) -> MetaReply {
        self.working_up_to.store(seen, Relaxed);
        self.working_ns.store(rt::monotonic_ns(), Relaxed);
        MetaReply::Unit
    }

    /// When the session last reported that it works on a recall; `None` if it didn't.
    pub fn last_working_report_ns(&self, recall: u64) -> Option<u64> {
        (recall <= self.working_up_to.load(Relaxed)).then(|| self.working_ns.load(Relaxed))
    }

    /// Whether the session has confirmed a recall.
    pub fn has_confirmed(&self, recall: u64) -> bool {
        let is_unconfirmed = self.recalls.lock().front().is_some_and(|first| first.number <= recall);
        !is_unconfirmed || recall <= self.working_up_to.load(Relaxed)
    }

    /// The session as a requester of leases. Recalls sent from now on have larger numbers than its
    /// `last_recall`.
    pub fn lease_requester(&self) -> Requester {
        let recalls = self.last_recall.load(Relaxed);
        Requester {
            session: self.id,
            last_recall: recalls,
            now_ns: rt::monotonic_ns(),
            acknowledges: self.is_remote(),
        }
    }

    /// Recalls with numbers above `after`, in order, at most [`RECALLS_PER_ANSWER`]. Recalls up to
    /// `after` are confirmed and removed.
    pub fn recalls_after(&self, after: u64) -> Vec<Recall> {
        let mut recalls = self.recalls.lock();
        while recalls.front().is_some_and(|recall| recall.number <= after) {
            recalls.pop_front();
        }
        if recalls.is_empty() {
            self.recalls_ready.clear();
        }
        recalls.iter().take(RECALLS_PER_ANSWER).copied().collect()
    }

    /// Waits until there may be recalls.
    pub async fn wait_for_recalls(&self) {
        self.recalls_ready.wait().await;
    }

    /// Adds answers from the store (`SessionRecords::replies`) that are unknown here: those of an
    /// earlier run, or of another service.
    pub fn restore_replies(&self, answers: Vec<Pair>) {
        let mut replies = self.replies.lock();
        for (key, value) in answers {
            let Some(Key::Operation { slot, .. }) = decode_key(&key) else { continue };
            let Ok(stored) = StoredReply::decode(value) else { continue };
            if let (Ok(slot), Some(reply)) = (u32::try_from(slot), stored.reply()) {
                let number = SlotSequence { slot, sequence: stored.sequence };
                replies.store(number, CachedReply { reply, ticket: None });
            }
        }
    }

    /// The answer that this request got before.
    ///
    /// Errors: those of [`ReplyCache::get`].
    pub fn cached_reply(&self, number: Option<SlotSequence>) -> Result<Option<CachedReply>> {
        number.map_or(Ok(None), |number| self.replies.lock().get(number))
    }

    /// Keeps an answer in memory.
    pub fn cache_reply(&self, number: Option<SlotSequence>, reply: &MetaReply, ticket: &Ticket) {
        if let Some(number) = number {
            let recorded = CachedReply { reply: reply.clone(), ticket: Some(ticket.clone()) };
            self.replies.lock().store(number, recorded);
        }
    }

    /// Adds the record of an answer to the writes of its request. It replaces the previous record
    /// of the session slot.
    pub fn store_reply(&self, request: &MetaRequest, reply: &MetaReply, writes: &mut Writes) {
        let must_store = self.is_remote() && !writes.is_empty();
        let Some(SlotSequence { slot, sequence }) = request.slot_sequence.filter(|_| must_store) else {
            return;
        };
        let reply = match request.op {
            // Another service must not execute it again: other clients may have extended the file
            // meanwhile. The rest of the answer was valid under a lease of this service only.
            MetaOp::Truncate { .. } => &MetaReply::Unit,
            _ => reply,
        };
        if let Some(stored) = StoredReply::of(reply, sequence) {
            writes.push((keys::operation(self.id, slot), Some(stored.encode_to_vec().into())));
        }
    }
}

fn evicted_error(id: SessionId) -> Error {
    let message = format!(
        "session {id} was evicted: it was unreachable, did not give up a lease in time, or an administrator evicted it"
    );
    Error::new(Errno::ESTALE, message)
        .hint("no action is needed: its client registers a new session by itself")
}
