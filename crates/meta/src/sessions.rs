//! The clients that the service knows.

use crate::limits::{MAX_SESSIONS, REPLIES_PER_SESSION};
use crate::record::StoredReply;
use crate::replies::{Recorded, Replies};
use crate::view::store_error;
use kv::{Engine, Ticket};
use namespace::{Key, Writes, decode_key, keys};
use parking_lot::{Mutex, RwLock};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use types::{Errno, Error, Result, SessionId};
use wire::MetaReply;

pub(crate) struct Session {
    id: SessionId,
    /// Its answers outlive this process.
    durable: bool,
    replies: Mutex<Replies>,
}

#[derive(Default)]
pub(crate) struct Sessions {
    by_id: RwLock<HashMap<SessionId, Arc<Session>>>,
}

impl Sessions {
    /// The session, made known by its first request if it was not registered.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>> {
        if let Some(session) = self.by_id.read().get(&id) {
            return Ok(session.clone());
        }
        self.insert(Session { id, durable: false, replies: Mutex::default() })
    }

    /// Makes a session known whose answers are kept in the store, with those that are there already.
    pub fn register_durable(&self, id: SessionId, engine: &dyn Engine) -> Result<()> {
        let range = keys::operations_of(id);
        let stored = engine.scan(&range.from, &range.to, 2 * REPLIES_PER_SESSION);
        let mut replies = Replies::default();
        for (key, value) in stored.map_err(|error| store_error(&error))? {
            let reply = StoredReply::decode(value).ok().and_then(|stored| stored.reply());
            if let (Some(Key::Operation { sequence, .. }), Some(reply)) = (decode_key(&key), reply) {
                replies.insert(sequence, Recorded { reply, ticket: None });
            }
        }
        self.by_id.write().remove(&id);
        self.insert(Session { id, durable: true, replies: Mutex::new(replies) }).map(|_| ())
    }

    pub fn remove(&self, id: SessionId) {
        self.by_id.write().remove(&id);
    }

    pub fn len(&self) -> usize {
        self.by_id.read().len()
    }

    fn insert(&self, session: Session) -> Result<Arc<Session>> {
        let mut by_id = self.by_id.write();
        if by_id.len() >= MAX_SESSIONS && !by_id.contains_key(&session.id) {
            let message = format!("{MAX_SESSIONS} sessions are open, session {} is one too many", session.id);
            return Err(Error::new(Errno::EBUSY, message).hint("unmount clients that are not needed"));
        }
        Ok(by_id.entry(session.id).or_insert_with(|| Arc::new(session)).clone())
    }
}

impl Session {
    /// The answer that this request got when it came before.
    pub fn recorded(&self, sequence: u64) -> Option<Recorded> {
        if sequence == 0 { None } else { self.replies.lock().get(sequence) }
    }

    /// Keeps an answer in memory.
    pub fn record(&self, sequence: u64, reply: &MetaReply, ticket: &Ticket) {
        if sequence != 0 {
            let recorded = Recorded { reply: reply.clone(), ticket: Some(ticket.clone()) };
            self.replies.lock().insert(sequence, recorded);
        }
    }

    /// Adds the record of an answer to the writes of its request, and takes out the one that is too old.
    pub fn record_durably(&self, sequence: u64, reply: &MetaReply, writes: &mut Writes) {
        if !self.durable || sequence == 0 || writes.is_empty() {
            return;
        }
        if let Some(stored) = StoredReply::of(reply) {
            writes.push((keys::operation(self.id, sequence), Some(stored.encode_to_vec().into())));
        }
        if let Some(old) = sequence.checked_sub(REPLIES_PER_SESSION as u64) {
            writes.push((keys::operation(self.id, old), None));
        }
    }
}
