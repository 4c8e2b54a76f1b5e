//! Records of sessions in the metadata store: the sessions themselves, tombstones of evicted ones,
//! and the answers to their last requests.
//!
//! A tombstone is kept until no client can return with the id of its session.

use crate::limits::{RECORDS_PER_DELETION, TOMBSTONE_RETENTION};
use crate::partition::executor::Executors;
use crate::session::table::Sessions;
use crate::store::record::StoredSession;
use crate::store::transaction_view::{not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome, Pair};
use namespace::{Key, Writes, decode_key, keys};
use prost::Message;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{Errno, Error, Result, SessionId};

/// Records of sessions in the metadata store.
pub(crate) struct SessionRecords {
    executors: Arc<Executors>,
    /// Whether other services share the partitions.
    shares_partitions: bool,
}

/// Outcome of [`SessionRecords::store`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionWrite {
    Stored,
    /// Another service has evicted the session: its record stays as it is.
    EndedElsewhere,
}

/// Sessions of other processes in the store.
pub(crate) struct StoredSessions {
    /// Those that may return.
    pub live: BTreeSet<SessionId>,
    /// Those that were evicted.
    pub ended: BTreeSet<SessionId>,
}

impl SessionRecords {
    pub fn new(executors: Arc<Executors>, shares_partitions: bool) -> SessionRecords {
        SessionRecords { executors, shares_partitions }
    }

    /// All sessions of other processes.
    pub async fn all(&self) -> Result<StoredSessions> {
        let range = keys::all_sessions();
        let mut sessions = StoredSessions { live: BTreeSet::new(), ended: BTreeSet::new() };
        let stored = self.executors.store.scan(&range.from, &range.to, usize::MAX).await;
        for (key, value) in stored.map_err(|error| store_error(&error))? {
            let Some(Key::Session(id)) = decode_key(&key) else { continue };
            let is_ended = decode(id, value)?.is_ended();
            let list = if is_ended { &mut sessions.ended } else { &mut sessions.live };
            list.insert(id);
        }
        Ok(sessions)
    }

    /// The record of a session of another process.
    pub async fn find(&self, id: SessionId) -> Result<Option<StoredSession>> {
        let stored = self.executors.store.get(&keys::session(id)).await;
        let stored = stored.map_err(|error| store_error(&error))?;
        stored.map(|value| decode(id, value)).transpose()
    }

    /// Stores or removes the record of a session of another process. The record of an evicted
    /// session stays, whichever service has evicted it.
    pub async fn store(&self, id: SessionId, record: Option<StoredSession>) -> Result<SessionWrite> {
        let key = keys::session(id).to_vec();
        loop {
            let before = self.executors.store.get(&key).await.map_err(|error| store_error(&error))?;
            let stored = before.clone().map(|value| decode(id, value)).transpose()?;
            if stored.is_some_and(|stored| stored.is_ended()) {
                let is_end = record.is_some_and(|record| record.is_ended());
                return Ok(if is_end { SessionWrite::Stored } else { SessionWrite::EndedElsewhere });
            }
            let value: Option<Bytes> = record.map(|record| record.encode_to_vec().into());
            if value == before {
                return Ok(SessionWrite::Stored);
            }
            let guards = vec![Guard { key: key.clone(), expected: before }];
            if self.commit_as_owner(guards, vec![(key.clone(), value)]).await? == Outcome::Applied {
                return Ok(SessionWrite::Stored);
            }
        }
    }

    /// Commits writes that belong to no partition. The commit is guarded by a partition that this
    /// service owns, if there is one, so that a service that was replaced changes nothing.
    async fn commit_as_owner(&self, guards: Vec<Guard>, writes: Writes) -> Result<Outcome> {
        let ownership = self.executors.all().find_map(|partition| {
            let executor = self.executors.lock(partition).ok()?;
            executor.is_owned().then(|| (partition, executor.owner.clone()))
        });
        let (partition, ownership) = ownership.unzip();
        let guards = guards.into_iter().chain(ownership.clone()).collect();
        let outcome = self.executors.store.commit(Batch { guards, writes }).await;
        let outcome = outcome.map_err(|error| store_error(&error))?;
        if let (Outcome::GuardFailed, Some(partition), Some(ownership)) = (outcome, partition, ownership) {
            let now = self.executors.store.get(&ownership.key).await.map_err(|error| store_error(&error))?;
            let mut executor = self.executors.lock(partition)?;
            if now != ownership.expected && executor.owner == ownership {
                executor.mark_not_owned();
                if !self.shares_partitions {
                    return Err(not_owner(partition));
                }
            }
        }
        Ok(outcome)
    }

    /// Deletes the records of sessions that were evicted long ago. `now_s`: seconds since 1970.
    pub async fn delete_old(&self, sessions: &Sessions, now_s: i64) -> Result<()> {
        let range = keys::all_sessions();
        let stored = self.executors.store.scan(&range.from, &range.to, usize::MAX).await;
        let mut retained = BTreeSet::new();
        for (key, value) in stored.map_err(|error| store_error(&error))? {
            let Some(Key::Session(id)) = decode_key(&key) else { continue };
            let record = StoredSession::decode(value.clone()).ok().filter(StoredSession::is_ended);
            let Some(record) = record else { continue };
            let left = match record.ended_s {
                Some(ended_s) if is_old(ended_s, now_s) => None,
                Some(_) => Some(record),
                // A record of an earlier version: counted from now on.
                None => Some(StoredSession::ended_at(now_s)),
            };
            if left != Some(record) {
                let guards = vec![Guard { key: key.to_vec(), expected: Some(value) }];
                let value = left.map(|record| record.encode_to_vec().into());
                let outcome = self.commit_as_owner(guards, vec![(key.to_vec(), value)]).await?;
                if left.is_none() && outcome == Outcome::Applied {
                    continue;
                }
            }
            retained.insert(id);
        }
        sessions.forget_evicted(|id, ended_s| !retained.contains(&id) && is_old(ended_s, now_s));
        Ok(())
    }

    /// The stored records of the last answers to a session, one for each session slot.
    pub async fn replies(&self, id: SessionId) -> Result<Vec<Pair>> {
        let range = keys::operations_of(id);
        let stored = self.executors.store.scan(&range.from, &range.to, usize::MAX).await;
        stored.map_err(|error| store_error(&error))
    }

    /// Deletes the records of a session's last answers.
    pub async fn delete_replies(&self, session: SessionId) -> Result<()> {
        for some in self.replies(session).await?.chunks(RECORDS_PER_DELETION) {
            let writes = some.iter().map(|(key, _)| (key.to_vec(), None)).collect();
            self.commit_as_owner(Vec::new(), writes).await?;
        }
        Ok(())
    }
}

fn decode(id: SessionId, value: Bytes) -> Result<StoredSession> {
    StoredSession::decode(value)
        .map_err(|cause| Error::new(Errno::EIO, format!("the record of session {id} is damaged: {cause}")))
}

fn is_old(ended_s: i64, now_s: i64) -> bool {
    now_s.saturating_sub(ended_s) > TOMBSTONE_RETENTION.as_secs() as i64
}
