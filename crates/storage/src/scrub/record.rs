//! The scrub state of one target: a small file in its directory.

use super::DEFAULT_INTERVAL_S;
use rt::{File, IoBuf, OpenOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use types::{ChunkFileId, GroupId, ScrubSettings, TargetId};
use wire::RepairResult;
use wire::mgmt::ScrubProgress;

/// The file's name.
const NAME: &str = "scrub.json";

/// A longer file isn't ours.
const MAX_BYTES: u64 = 64 << 10;

/// Targets whose scrubs are due at one time begin one after the other within this part of the
/// interval.
const START_SPREAD: u64 = 10;

/// Phases of a scrub, in order, for each group and for the target's own chunk files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    /// Reads every chunk file.
    #[default]
    Read,
    /// Looks for missing chunk files.
    Missing,
    /// Compares replicas, as the primary.
    Compare,
}

/// The position of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(super) struct Position {
    /// `None`: the target's own chunk files, which come first.
    pub(super) group: Option<GroupId>,
    pub(super) phase: Phase,
    /// The next file, in the store's order.
    pub(super) ino: ChunkFileId,
}

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ScrubRecord {
    /// When the target was first seen, seconds.
    pub(super) since_s: i64,
    pub(super) asked: u64,
    pub(super) began_s: i64,
    pub(super) ended_s: i64,
    /// `None`: no scrub is under way.
    pub(super) position: Option<Position>,
    pub(super) bytes_done: u64,
    pub(super) files_done: u64,
    /// Bytes that the previous scrub read.
    pub(super) bytes_before: Option<u64>,
    pub(super) damaged: u64,
    pub(super) mended: u64,
    pub(super) missing: u64,
    pub(super) stray: u64,
}

impl ScrubRecord {
    /// Loads the stored record. Returns a new one if none exists or it can't be read: then the
    /// scrub starts from the beginning.
    pub(super) async fn load(dir: &Path, now_s: i64) -> ScrubRecord {
        let stored = read(dir).await.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        stored.unwrap_or(ScrubRecord { since_s: now_s, ..ScrubRecord::default() })
    }

    /// Stores the record atomically. A failure is logged, and the scrub continues.
    pub(super) async fn store(&self, dir: &Path, target: TargetId) {
        if let Err(error) = self.write(dir).await {
            tracing::warn!(target_id = %target, %error, "can't write {}: a restart scrubs the target from the beginning", dir.join(NAME).display());
        }
    }

    async fn write(&self, dir: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let (path, draft) = (dir.join(NAME), dir.join(format!("{NAME}.new")));
        let options = OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() };
        let file = File::open(&draft, options).await?;
        file.write_at(IoBuf::from_slice(&text), 0).await?;
        file.sync_data().await?;
        rt::rename(&draft, &path).await
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.position.is_some()
    }

    /// Whether a scrub should run now.
    pub(super) fn is_due(&self, settings: &ScrubSettings, target: TargetId, now_s: i64) -> bool {
        if self.is_under_way() || settings.asked > self.asked {
            return true;
        }
        let every_s = settings.every_s.unwrap_or(DEFAULT_INTERVAL_S);
        let late_s = every_s / START_SPREAD * (u64::from(target.0) % START_SPREAD) / START_SPREAD;
        let passed_s = now_s.saturating_sub(self.began_s.max(self.since_s));
        every_s > 0 && u64::try_from(passed_s).is_ok_and(|passed_s| passed_s >= every_s + late_s)
    }

    pub(super) fn begin(&mut self, asked: u64, now_s: i64) {
        let ScrubRecord { since_s, ended_s, bytes_before, .. } = *self;
        let position = Some(Position::default());
        *self = ScrubRecord {
            since_s,
            ended_s,
            bytes_before,
            asked,
            began_s: now_s,
            position,
            ..ScrubRecord::default()
        };
    }

    pub(super) fn end(&mut self, now_s: i64) {
        self.position = None;
        self.ended_s = now_s;
        self.bytes_before = Some(self.bytes_done);
    }

    pub(super) fn add(&mut self, result: RepairResult) {
        self.damaged += result.damaged;
        self.mended += result.repaired;
    }

    pub(super) fn progress(
        &self,
        target: TargetId,
        is_running: bool,
        hindrance: Option<String>,
    ) -> ScrubProgress {
        ScrubProgress {
            target,
            is_running: is_running || self.is_under_way(),
            asked: self.asked,
            began_s: self.began_s,
            ended_s: self.ended_s,
            bytes_done: self.bytes_done,
            bytes_total: if self.is_under_way() { self.bytes_before } else { Some(self.bytes_done) },
            files_done: self.files_done,
            damaged: self.damaged,
            mended: self.mended,
            missing: self.missing,
            stray: self.stray,
            hindrance,
        }
    }
}

async fn read(dir: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(&dir.join(NAME), OpenOptions { read: true, ..OpenOptions::default() }).await?;
    let len = file.stat().await?.len.min(MAX_BYTES);
    let buf = IoBuf::alloc(len as usize);
    let got = file.read_at(buf.clone(), 0).await?;
    Ok(buf.as_slice()[..got].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_by_schedule_and_on_request() {
        let target = TargetId(20);
        let mut record = ScrubRecord { since_s: 1000, ..ScrubRecord::default() };
        let every = |every_s| ScrubSettings { every_s, ..ScrubSettings::default() };
        assert!(!record.is_due(&every(Some(100)), target, 1099));
        assert!(record.is_due(&every(Some(100)), target, 1100));
        assert!(!record.is_due(&every(Some(100)), TargetId(21), 1100), "not all at once");
        assert!(!record.is_due(&every(Some(0)), target, i64::MAX), "never by itself");
        assert!(!record.is_due(&every(None), target, 1000 + DEFAULT_INTERVAL_S as i64 - 1));
        let asked = ScrubSettings { asked: 3, every_s: Some(0), ..ScrubSettings::default() };
        assert!(record.is_due(&asked, target, 1001));
        record.begin(3, 1001);
        assert!(record.is_under_way());
        record.bytes_done = 77;
        record.end(1005);
        assert!(!record.is_due(&asked, target, 1006), "once for each time it is asked for");
        assert_eq!((record.began_s, record.ended_s, record.bytes_before), (1001, 1005, Some(77)));
    }

    #[test]
    fn the_record_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let run = async move {
            let mut record = ScrubRecord::load(&path, 7).await;
            assert_eq!(record, ScrubRecord { since_s: 7, ..ScrubRecord::default() });
            record.begin(1, 8);
            record.position =
                Some(Position { group: Some(GroupId(5)), phase: Phase::Compare, ino: ChunkFileId(9) });
            record.store(&path, TargetId(1)).await;
            assert_eq!(ScrubRecord::load(&path, 99).await, record);
            std::fs::write(path.join(NAME), b"{").unwrap();
            assert_eq!(
                ScrubRecord::load(&path, 99).await.since_s,
                99,
                "an unreadable record begins a new scrub"
            );
        };
        rt::block_on(run).unwrap();
    }
}
