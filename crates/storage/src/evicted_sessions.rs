//! Sessions that were evicted, recorded on the target so that the service refuses them after a
//! restart, too.
//!
//! An evicted client may be suspended, and send its requests when it resumes: hours later, to a
//! service that restarted meanwhile. For [`RETENTION_S`] this record refuses such requests; after
//! that the client's capabilities have expired for good.

use crate::convert;
use chunkstore::{ROW_BYTES, Row, Store};
use parking_lot::Mutex;
use types::{Errno, Error, HashMap, Result, SessionId};

/// Sessions that a target records: a file of 1 MiB. The cluster evicts a session when its client
/// has died or lost its connection.
const MAX_EVICTED: u32 = 16_384;

/// Shortest time that a record is retained, in seconds: many times the validity of a capability,
/// without which a session can do nothing.
const RETENTION_S: i64 = 2 * 3600;

/// The evicted sessions of one target.
pub(crate) struct EvictedSessions {
    table: Mutex<EvictionTable>,
}

#[derive(Default)]
struct EvictionTable {
    /// Row of each session, and when it was evicted, Unix seconds.
    rows: HashMap<SessionId, (u32, i64)>,
    /// The first row that was never used.
    next_unused: u32,
}

impl EvictedSessions {
    /// Loads the rows of the former process; also returns their sessions.
    pub(crate) fn load(store: &Store) -> (EvictedSessions, Vec<SessionId>) {
        let mut table = EvictionTable::default();
        for (place, row) in store.fences().take_found() {
            let (session, ended_s) = decoded(&row);
            table.rows.insert(session, (place, ended_s));
            table.next_unused = table.next_unused.max(place + 1);
        }
        let sessions = table.rows.keys().copied().collect();
        (EvictedSessions { table: Mutex::new(table) }, sessions)
    }

    /// Records another session; the row is on disk when this returns. Returns the session whose
    /// expired row it replaced, if any.
    pub(crate) async fn record(
        &self,
        store: &Store,
        session: SessionId,
        now_s: i64,
    ) -> Result<Option<SessionId>> {
        let (place, other) = self.table.lock().place(session, now_s)?;
        let rows = store.fences();
        rows.write(place, &encoded(session, now_s)).await.map_err(|e| convert::error(&e))?;
        rows.sync().await.map_err(|e| convert::error(&e))?;
        Ok(other)
    }
}

impl EvictionTable {
    fn place(&mut self, session: SessionId, now_s: i64) -> Result<(u32, Option<SessionId>)> {
        if let Some((place, ended_s)) = self.rows.get_mut(&session) {
            *ended_s = now_s;
            return Ok((*place, None));
        }
        let (place, other) = if self.next_unused < MAX_EVICTED {
            self.next_unused += 1;
            (self.next_unused - 1, None)
        } else {
            let oldest = self.rows.iter().min_by_key(|(_, (_, ended_s))| *ended_s);
            let oldest = oldest.filter(|(_, (_, ended_s))| now_s - ended_s > RETENTION_S);
            let Some((&other, &(place, _))) = oldest else {
                let message = format!("{MAX_EVICTED} sessions were evicted within {RETENTION_S} s");
                return Err(Error::new(Errno::EBUSY, message).hint("find out why clients fail: weft health"));
            };
            self.rows.remove(&other);
            (place, Some(other))
        };
        self.rows.insert(session, (place, now_s));
        Ok((place, other))
    }
}

fn encoded(session: SessionId, ended_s: i64) -> Row {
    let mut row = [0; ROW_BYTES];
    row[0..8].copy_from_slice(&session.0.to_le_bytes());
    row[8..16].copy_from_slice(&ended_s.to_le_bytes());
    row
}

fn decoded(row: &Row) -> (SessionId, i64) {
    let field = |at: usize| -> [u8; 8] { row[at..at + 8].try_into().expect("fields lie within the row") };
    (SessionId(u64::from_le_bytes(field(0))), i64::from_le_bytes(field(8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_replaces_its_oldest_expired_row() {
        let mut table = EvictionTable::default();
        for id in 0..u64::from(MAX_EVICTED) {
            assert_eq!(table.place(SessionId(id), 1000 + id as i64).unwrap(), (id as u32, None));
        }
        assert_eq!(
            table.place(SessionId(3), 2000).unwrap(),
            (3, None),
            "one that is told again keeps its place"
        );
        let new = SessionId(u64::MAX);
        assert_eq!(table.place(new, 1000 + RETENTION_S).unwrap_err().errno, Errno::EBUSY);
        assert_eq!(table.place(new, 1001 + RETENTION_S).unwrap(), (0, Some(SessionId(0))));
        assert_eq!(table.rows.len(), MAX_EVICTED as usize);
    }

    #[test]
    fn a_row_is_frozen() {
        let row = encoded(SessionId(0x0102), 0x0304);
        assert_eq!(row[..16], [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decoded(&row), (SessionId(0x0102), 0x0304));
    }
}
