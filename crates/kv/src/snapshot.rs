//! Snapshots of the embedded engine.

use crate::embedded::{Damage, check_undamaged, record_damage, translate};
use crate::{Batch, Engine, KvError, Outcome, Pair};
use bytes::Bytes;
use fjall::{Keyspace, Readable, Snapshot};
use std::path::PathBuf;

/// A snapshot. As long as it exists, its content stays on disk.
pub(crate) struct EmbeddedSnapshot {
    snapshot: Snapshot,
    keyspace: Keyspace,
    path: PathBuf,
    damage: Damage,
}

impl EmbeddedSnapshot {
    pub(crate) fn new(
        snapshot: Snapshot,
        keyspace: Keyspace,
        path: PathBuf,
        damage: Damage,
    ) -> EmbeddedSnapshot {
        EmbeddedSnapshot { snapshot, keyspace, path, damage }
    }

    fn failed(&self, error: fjall::Error) -> KvError {
        record_damage(&self.damage, &self.path, translate(&self.path, error))
    }

    fn refused(&self) -> KvError {
        KvError::Io { path: self.location(), cause: "a snapshot can't be changed".into() }
    }
}

impl Engine for EmbeddedSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        check_undamaged(&self.damage)?;
        let value = self.snapshot.get(&self.keyspace, key).map_err(|e| self.failed(e))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        check_undamaged(&self.damage)?;
        let pair = |guard: fjall::Guard| {
            let (key, value) = guard.into_inner().map_err(|e| self.failed(e))?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        };
        self.snapshot.range(&self.keyspace, from..to).take(limit).map(pair).collect()
    }

    fn apply(&self, _batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        Err(self.refused())
    }

    fn persist(&self) -> Result<(), KvError> {
        Err(self.refused())
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batch, Embedded, Engine};

    #[test]
    fn a_snapshot_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::open(dir.path()).unwrap();
        let write = |key: &[u8], value: Option<&'static [u8]>| {
            let writes = vec![(key.to_vec(), value.map(bytes::Bytes::from_static))];
            engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
        };
        write(b"a", Some(b"1"));
        write(b"b", Some(b"1"));
        let before = engine.snapshot().unwrap();
        write(b"a", Some(b"2"));
        write(b"b", None);
        write(b"c", Some(b"2"));
        assert_eq!(before.get(b"a").unwrap().unwrap(), "1");
        assert_eq!(before.scan(b"a", b"z", 9).unwrap().len(), 2);
        assert_eq!(engine.scan(b"a", b"z", 9).unwrap().len(), 2);
        assert_eq!(engine.get(b"a").unwrap().unwrap(), "2");
        assert!(before.apply(&[Batch::default()]).is_err());
    }
}
