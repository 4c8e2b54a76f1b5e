//! Tombstones: records of evicted sessions, kept until no client can return with their ids.

use crate::limits::TOMBSTONE_RETENTION;
use crate::service::MetaService;
use crate::store::record::StoredSession;
use crate::store::transaction_view::store_error;
use kv::{Guard, Outcome};
use namespace::{Key, decode_key, keys};
use prost::Message;
use std::collections::BTreeSet;
use types::{Result, SessionId};

impl MetaService {
    /// Deletes the records of sessions that were evicted long ago. `now_s`: seconds since 1970.
    pub async fn delete_old_tombstones(&self, now_s: i64) -> Result<()> {
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
        self.sessions
            .forget_evicted(|id: SessionId, ended_s| !retained.contains(&id) && is_old(ended_s, now_s));
        Ok(())
    }
}

fn is_old(ended_s: i64, now_s: i64) -> bool {
    now_s.saturating_sub(ended_s) > TOMBSTONE_RETENTION.as_secs() as i64
}
