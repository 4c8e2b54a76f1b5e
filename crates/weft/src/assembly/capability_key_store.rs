//! The capability keys on the management node: their file and their rotation.

use identity::{CapabilityKeys, KEY_DISTRIBUTION_S, KEY_ROTATION_S};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use types::Result;

/// The keys, and the state of their rotation.
pub struct CapabilityKeyStore {
    keys: CapabilityKeys,
    path: PathBuf,
    /// When the file was last written, in Unix seconds: a key was staged or promoted then.
    changed_s: i64,
    /// Whether the newest key doesn't sign yet.
    staged: bool,
}

impl CapabilityKeyStore {
    /// Reads the keys; creates the first one of a new cluster.
    pub fn load(path: &Path) -> Result<CapabilityKeyStore> {
        let made = !path.exists();
        if made {
            CapabilityKeys::create()?.store(path)?;
        }
        let keys = CapabilityKeys::load(path)?;
        // If the file's time is unknown, rotation isn't due for a day.
        let modified = std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed_s = since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(rt::now().secs);
        let staged = keys.is_staged();
        Ok(CapabilityKeyStore { keys, path: path.to_path_buf(), changed_s, staged })
    }

    /// Returns the keys at this time. A new key is staged once a day, and signs when all nodes have
    /// had time to receive it.
    pub fn at(&mut self, now_s: i64) -> Result<&CapabilityKeys> {
        let age_s = now_s - self.changed_s;
        let mut next = self.keys.clone();
        let staged = match self.staged {
            true if age_s >= KEY_DISTRIBUTION_S => {
                next.promote();
                false
            }
            false if age_s >= KEY_ROTATION_S => {
                next.stage()?;
                true
            }
            _ => return Ok(&self.keys),
        };
        // Keys that aren't in the file are given to no node: they would be lost by a restart.
        if let Err(error) = next.store(&self.path) {
            // A full disk, for example. The current keys are returned all the same: nodes without
            // keys would lose their leases.
            tracing::warn!(hint = error.hint(), "the capability keys could not be rotated: {error}");
            return Ok(&self.keys);
        }
        tracing::info!(keys = ?next.ids(), staged, "the capability keys were rotated");
        (self.keys, self.staged, self.changed_s) = (next, staged, now_s);
        Ok(&self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_handed_out_before_it_signs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let mut store = CapabilityKeyStore::load(&path).unwrap();
        let began_s = store.changed_s;
        let first = store.at(began_s + KEY_ROTATION_S - 1).unwrap().clone();
        assert_eq!(first.ids(), [1]);
        let day_s = began_s + KEY_ROTATION_S;
        let staged = store.at(day_s).unwrap().clone();
        assert!(staged.ids() == [1, 2] && staged.is_staged());
        assert!(store.at(day_s + KEY_DISTRIBUTION_S - 1).unwrap().is_staged());
        // A process that is started in between continues the rotation.
        let mut again = CapabilityKeyStore::load(&path).unwrap();
        again.changed_s = day_s;
        for store in [&mut store, &mut again] {
            let promoted = store.at(day_s + KEY_DISTRIBUTION_S).unwrap();
            assert!(promoted.ids() == [1, 2] && !promoted.is_staged());
        }
    }

    #[test]
    fn keys_that_cant_be_changed_stay_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = CapabilityKeyStore::load(&dir.path().join("keys.toml")).unwrap();
        let day_s = store.changed_s + KEY_ROTATION_S;
        // The file can't be written, because a directory has the name of its draft.
        let draft = dir.path().join("keys.toml.draft");
        std::fs::create_dir(&draft).unwrap();
        let kept = store.at(day_s).unwrap();
        assert!(kept.ids() == [1] && !kept.is_staged());
        std::fs::remove_dir(&draft).unwrap();
        let staged = store.at(day_s).unwrap();
        assert!(staged.ids() == [1, 2] && staged.is_staged());
    }
}
