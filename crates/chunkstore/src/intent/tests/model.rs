//! Random use of the log against a model that only knows which regions a change may still rely on:
//! the log on disk has to cover them, whenever the process dies.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use types::{ChunkFileId, InodeId, PartitionId};

#[derive(Clone, Copy, Debug)]
enum Op {
    /// The next files of a partition, some numbers left out.
    New { partition: u16, skip: u64, count: u64 },
    /// A change of a created file, by its index among all of them.
    Change { file: usize, first: u64, regions: u64 },
    /// A maintenance pass begins if none is in progress.
    BeginPass { idle: u64 },
    /// It ends; every n-th file could not be synced.
    EndPass { failing: usize },
    /// The process dies, and the log is opened again.
    Kill,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u16, prop_oneof![4 => 0..20u64, 1 => 500..3000u64], 1..10u64)
            .prop_map(|(partition, skip, count)| Op::New { partition, skip, count }),
        4 => (any::<usize>(), prop_oneof![3 => Just(0), 1 => 0..70u64], 1..4u64)
            .prop_map(|(file, first, regions)| Op::Change { file, first, regions }),
        3 => (0..4u64).prop_map(|idle| Op::BeginPass { idle }),
        3 => (1..6usize).prop_map(|failing| Op::EndPass { failing }),
        1 => Just(Op::Kill),
    ]
}

/// What a change relies on: a region of a file.
type Region = (ChunkFileId, u64);

struct Model {
    dir: PathBuf,
    log: IntentLog,
    statistics: Statistics,
    next: BTreeMap<u16, u64>,
    files: Vec<ChunkFileId>,
    /// With the time of the last change that relies on it.
    relied_on: BTreeMap<Region, u64>,
    time: u64,
    /// The pass in progress: when it began, and what retires.
    retiring: Option<(u64, BTreeMap<ChunkFileId, Vec<DirtyRegions>>)>,
}

impl Model {
    async fn new(dir: PathBuf) -> Model {
        Model {
            log: fresh_log(&dir).await,
            dir,
            statistics: Statistics::default(),
            next: BTreeMap::new(),
            files: Vec::new(),
            relied_on: BTreeMap::new(),
            time: 0,
            retiring: None,
        }
    }

    async fn play(&mut self, op: Op) {
        self.time += 1;
        match op {
            Op::New { partition, skip, count } => {
                for _ in 0..count {
                    let next = self.next.entry(partition).or_default();
                    *next += 1 + skip;
                    let ino = InodeId::new(PartitionId(partition), *next).first_chunk_file();
                    self.log.mark_new_file(ino, &self.statistics).await.unwrap();
                    self.files.push(ino);
                    self.relied_on.insert((ino, 0), self.time);
                }
            }
            Op::Change { file, first, regions } if !self.files.is_empty() => {
                let ino = self.files[file % self.files.len()];
                self.log.mark_dirty(ino, range(first, first + regions), &self.statistics).await.unwrap();
                self.relied_on.extend((first..first + regions).map(|region| ((ino, region), self.time)));
            }
            Op::BeginPass { idle } if self.retiring.is_none() => {
                self.retiring = Some((self.time, self.log.begin_retiring(idle)));
            }
            Op::EndPass { failing } => self.end_pass(failing).await,
            Op::Kill => self.kill().await,
            _ => {}
        }
    }

    async fn end_pass(&mut self, failing: usize) {
        let Some((began, retiring)) = self.retiring.take() else { return };
        for (i, (ino, notes)) in retiring.iter().enumerate() {
            if i % failing == failing - 1 {
                self.log.reactivate(*ino);
                continue;
            }
            self.log.retire(*ino);
            let is_noted = |region| notes.iter().any(|note| note.first <= region && region < note.end);
            // What changed after the pass began has a new entry.
            self.relied_on
                .retain(|(other, region), changed| other != ino || !is_noted(*region) || *changed > began);
        }
        self.log.compact(&self.statistics).await.unwrap();
    }

    async fn kill(&mut self) {
        self.retiring = None;
        let found = IntentLog::open(TARGET, &self.dir).await.unwrap().unwrap();
        let ShutdownState::InUse(records) = found.shutdown else { panic!("the log is in use") };
        let is_in_span = |ino: &ChunkFileId| records.spans.iter().any(|span| span.contains(*ino));
        let in_spans: BTreeSet<ChunkFileId> = self.files.iter().copied().filter(is_in_span).collect();
        let inherited = RetainedRecords { in_spans: in_spans.into_iter().collect(), records };
        found.log.resume(&inherited).await.unwrap();
        self.log = found.log;
    }

    async fn check(&self, op: Op) {
        let Records { entries: notes, spans } = on_disk(&self.dir).await;
        for (ino, region) in self.relied_on.keys() {
            let in_span = *region == 0 && spans.iter().any(|span| span.contains(*ino));
            let in_note = || notes.iter().any(|n| n.ino == *ino && n.first <= *region && *region < n.end);
            assert!(in_span || in_note(), "{op:?}: region {region} of inode {ino:?} isn't noted");
        }
        let logged = self.log.logged_count();
        assert!(logged <= self.log.entry_count() && notes.len() <= logged + COMPACT_RETIRED_ENTRIES);
    }

    /// Once everything is on disk, no entry is left, and every count is as in the beginning.
    async fn finish(mut self) {
        self.end_pass(usize::MAX).await;
        for _ in 0..2 {
            self.retiring = Some((u64::MAX, self.log.begin_retiring(0)));
            self.end_pass(usize::MAX).await;
        }
        assert_eq!(self.relied_on, BTreeMap::new());
        assert_eq!(on_disk(&self.dir).await, Records::default());
        let IntentLog { table, .. } = &self.log;
        assert_eq!((table.len(), table.logged(), table.spans().len()), (0, 0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_change_relies_on_is_on_disk(ops in proptest::collection::vec(op(), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        run(async move {
            let mut model = Model::new(path).await;
            for op in ops {
                model.play(op).await;
                model.check(op).await;
            }
            model.finish().await;
        });
    }
}
