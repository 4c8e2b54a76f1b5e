//! The time after a start in which sessions of before may come back.
//!
//! A restart forgets all leases, but the sessions that had them don't know yet. Until each of them has registered again, and so dropped what it
//! cached, or is ended for good, nothing is read or changed.

use crate::eviction::within;
use crate::limits::GRACE_TIME;
use crate::record::StoredSession;
use crate::service::MetaService;
use crate::view::store_error;
use kv::Store;
use namespace::{Key, decode_key, keys};
use parking_lot::Mutex;
use prost::Message;
use rt::sync::Event;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Errno, Error, Result, SessionId};

/// What is known of sessions from before the start.
pub(crate) struct Grace {
    /// Sessions that may come back.
    expected: Mutex<BTreeSet<SessionId>>,
    /// There were some.
    is_needed: bool,
    until_ns: u64,
    is_on: AtomicBool,
    /// Somebody sees to its end.
    is_ending: AtomicBool,
    over: Event,
}

impl Grace {
    pub fn new(expected: BTreeSet<SessionId>) -> Grace {
        Grace {
            until_ns: rt::monotonic_ns() + GRACE_TIME.as_nanos() as u64,
            is_needed: !expected.is_empty(),
            is_on: AtomicBool::new(!expected.is_empty()),
            is_ending: AtomicBool::new(false),
            expected: Mutex::new(expected),
            over: Event::new(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub fn is_expected(&self, session: SessionId) -> bool {
        self.is_on() && self.expected.lock().contains(&session)
    }

    /// A session is back.
    pub fn returned(&self, session: SessionId) {
        if !self.is_on() {
            return;
        }
        let are_all_back = {
            let mut expected = self.expected.lock();
            expected.remove(&session) && expected.is_empty()
        };
        if are_all_back && !self.is_ending.swap(true, Ordering::AcqRel) {
            self.end();
        }
    }

    fn remaining(&self) -> Duration {
        Duration::from_nanos(self.until_ns.saturating_sub(rt::monotonic_ns()))
    }

    fn end(&self) {
        self.is_on.store(false, Ordering::Release);
        self.over.set();
    }
}

impl MetaService {
    /// Waits until all sessions of before the start are back or ended.
    pub(crate) async fn wait_for_grace(&self) {
        while self.grace.is_on() {
            let remaining = self.grace.remaining();
            if remaining.is_zero() {
                self.end_grace();
                self.grace.over.wait().await;
            } else {
                within(remaining, self.grace.over.wait()).await;
            }
        }
    }

    /// Begins to end the sessions that didn't come back.
    fn end_grace(&self) {
        let Some(myself) = self.myself.upgrade() else { return };
        if !self.grace.is_ending.swap(true, Ordering::AcqRel) {
            rt::spawn(async move { myself.carry_out_end_of_grace().await });
        }
    }

    async fn carry_out_end_of_grace(self: Arc<Self>) {
        // Still expected until they are ended: none comes back in between.
        let late = self.grace.expected.lock().clone();
        late.iter().for_each(|id| self.sessions.bury(*id));
        for id in late {
            self.clone().carry_out_eviction(id).await;
        }
        self.grace.end();
    }

    /// Sees to what had to wait for the end of the grace.
    pub(crate) async fn tidy_after_grace(self: Arc<Self>) {
        if !self.grace.is_needed {
            return;
        }
        self.wait_for_grace().await;
        let is_unknown = |session| self.sessions.find(session).is_none();
        if let Err(error) = self.reclaim_all_orphans(is_unknown).await {
            tracing::warn!(%error, "files without a name stay until the next start");
        }
    }
}

/// Sessions of other processes of which the store knows: those that may come back, and those that were ended for good.
pub(crate) async fn stored_sessions(store: &Store) -> Result<(BTreeSet<SessionId>, BTreeSet<SessionId>)> {
    let range = keys::all_sessions();
    let (mut living, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let stored = store.scan(&range.from, &range.to, usize::MAX).await;
    for (key, value) in stored.map_err(|error| store_error(&error))? {
        let Some(Key::Session(id)) = decode_key(&key) else { continue };
        let record = StoredSession::decode(value).map_err(|cause| {
            Error::new(Errno::EIO, format!("the record of session {id} is damaged: {cause}"))
        })?;
        let list = if record.is_ended() { &mut ended } else { &mut living };
        list.insert(id);
    }
    Ok((living, ended))
}
