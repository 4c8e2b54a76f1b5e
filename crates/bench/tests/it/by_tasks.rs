//! Loads whose threads are tasks and whose files are in memory, with the same checks as for a real
//! directory.

use bench::load::{Backend, BackendFile, Cores, NoObserver, Observer, run_on};
use bench::{
    Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, Through, TreeShape,
};
use rt::IoBuf;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use types::{Errno, HashMap, Result};

/// Files and directories by their paths; a directory has no content.
type Tree = Arc<Mutex<HashMap<PathBuf, Option<Vec<u8>>>>>;

#[derive(Clone)]
struct Memory {
    cores: Arc<Cores>,
    tree: Tree,
    open: Arc<AtomicU32>,
    /// Transfers in flight, and their maximum so far.
    busy: Arc<(AtomicU32, AtomicU32)>,
}

impl Memory {
    fn new() -> Memory {
        let (open, busy) = (Arc::default(), Arc::default());
        Memory { cores: Arc::new(Cores::start().unwrap()), tree: Tree::default(), open, busy }
    }

    /// Asserts that no file is open any more, and that `paths` paths are left.
    fn end(&self, paths: usize) {
        self.cores.end();
        assert_eq!(self.open.load(Ordering::SeqCst), 0, "files that were never closed");
        assert_eq!(self.tree.lock().unwrap().len(), paths);
    }
}

struct Opened {
    memory: Memory,
    path: PathBuf,
}

impl Backend for Memory {
    type File = Opened;

    const ACCESS_PATH: Through = Through::Core;

    fn start<F: Future<Output = ()> + 'static>(
        &self,
        number: u32,
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Result<()> {
        self.cores.start_task(number, body);
        Ok(())
    }

    async fn open(&self, path: &Path, is_write: bool, _: Caching) -> Result<Opened> {
        let mut tree = self.tree.lock().unwrap();
        if is_write {
            tree.entry(path.into()).or_insert(Some(Vec::new()));
        }
        tree.get(path).ok_or(Errno::ENOENT)?;
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Opened { memory: self.clone(), path: path.into() })
    }

    async fn drop_cache(&self, path: &Path) -> Result<()> {
        self.stat(path).await.map(drop)
    }

    async fn make_directory(&self, path: &Path) -> Result<()> {
        assert_eq!(self.tree.lock().unwrap().insert(path.into(), None), None);
        Ok(())
    }

    async fn create(&self, path: &Path, content: &IoBuf) -> Result<()> {
        rt::yield_now().await;
        match self.tree.lock().unwrap().insert(path.into(), Some(content.as_slice().to_vec())) {
            None => Ok(()),
            Some(_) => Err(Errno::EEXIST.into()),
        }
    }

    async fn stat(&self, path: &Path) -> Result<u64> {
        let tree = self.tree.lock().unwrap();
        Ok(tree.get(path).ok_or(Errno::ENOENT)?.as_ref().unwrap().len() as u64)
    }

    async fn read_file(&self, path: &Path, buffer: &mut IoBuf) -> Result<u64> {
        let tree = self.tree.lock().unwrap();
        let content = tree.get(path).ok_or(Errno::ENOENT)?.as_ref().unwrap();
        buffer.copy_from(0, content);
        Ok(content.len() as u64)
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        self.tree.lock().unwrap().remove(path).map(drop).ok_or(Errno::ENOENT.into())
    }
}

impl BackendFile for Opened {
    async fn transfer(&self, buffer: &mut IoBuf, offset: u64, is_write: bool) -> Result<()> {
        let (busy, most) = &*self.memory.busy;
        most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        rt::yield_now().await;
        busy.fetch_sub(1, Ordering::SeqCst);
        let mut tree = self.memory.tree.lock().unwrap();
        let content = tree.get_mut(&self.path).ok_or(Errno::ENOENT)?.as_mut().unwrap();
        let range = offset as usize..offset as usize + buffer.len();
        if is_write {
            let length = content.len().max(range.end);
            content.resize(length, 0);
            content[range].copy_from_slice(buffer.as_slice());
        } else {
            buffer.copy_from(0, content.get(range).ok_or(Errno::EIO)?);
        }
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {
        self.memory.open.fetch_sub(1, Ordering::SeqCst);
    }
}

fn io(sharing: FileSharing, access: Access, queue_depth: u32) -> IoExperiment {
    IoExperiment {
        name: "io".into(),
        operations: vec![Operation::Write, Operation::Read, Operation::Mixed, Operation::Read],
        threads: 5,
        sharing,
        access,
        record_bytes: 4_700,
        thread_bytes: 20 * 4_700 + 5,
        queue_depth,
        caching: Caching::Warm,
        seconds: None,
        verify: true,
    }
}

#[test]
fn all_forms_move_what_they_should_with_as_many_under_way() {
    let dir = tempfile::tempdir().unwrap();
    for sharing in [FileSharing::OwnFiles, FileSharing::Segments, FileSharing::Interleaved] {
        for (access, depth) in [(Access::Sequential, 1), (Access::Random, 1), (Access::Random, 7)] {
            let memory = Memory::new();
            let experiment = Experiment::Io(io(sharing, access, depth));
            let loaded = run_on(&memory, &experiment, dir.path(), 1, &NoObserver).unwrap();
            assert_eq!((loaded.measured.len(), loaded.notes.len()), (4, 0), "{:?}", loaded.notes);
            for measured in &loaded.measured {
                let run = &measured.runs[0];
                let told = (run.operations, run.bytes, run.errors, run.wrong_bytes, measured.through);
                assert_eq!(told, (100, 100 * 4_700, 0, 0, Through::Core), "{sharing:?} {access:?} {depth}");
            }
            let most = memory.busy.1.load(Ordering::SeqCst);
            assert!(most <= 5 * depth && (depth == 1 || most >= depth), "{most} under way of {depth}");
            memory.end(if sharing == FileSharing::OwnFiles { 5 } else { 1 });
            assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
        }
    }
}

#[test]
fn files_are_made_looked_at_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    for (shape, directories) in
        [(TreeShape::SharedDirectory, 0), (TreeShape::OwnDirectories { directories: 3 }, 5 * 4)]
    {
        let memory = Memory::new();
        let experiment = Experiment::Meta(MetaExperiment {
            name: "meta".into(),
            operations: vec![Operation::Create, Operation::Stat, Operation::ReadFile, Operation::Remove],
            threads: 5,
            thread_files: 20,
            file_bytes: 3901,
            shape,
            caching: Caching::Warm,
        });
        let loaded = run_on(&memory, &experiment, dir.path(), 1, &NoObserver).unwrap();
        let counts: Vec<_> =
            loaded.measured.iter().map(|of| (of.runs[0].operations, of.runs[0].errors)).collect();
        assert_eq!((counts, loaded.notes.len()), (vec![(100, 0); 4], 0));
        memory.end(directories);
    }
}

/// Changes the files before they are read.
struct Spoiler(Tree, fn(&mut Vec<u8>));

impl Observer for Spoiler {
    fn before_phase(&self, operation: Operation, folder: &Path) {
        if operation == Operation::Read {
            let mut tree = self.0.lock().unwrap();
            (self.1)(tree.get_mut(&folder.join("file.0")).unwrap().as_mut().unwrap());
        }
    }
}

#[test]
fn a_planted_byte_is_found_and_too_many_errors_end_it() {
    let dir = tempfile::tempdir().unwrap();
    for depth in [1, 4] {
        let mut io = io(FileSharing::Interleaved, Access::Sequential, depth);
        io.operations.truncate(2);
        let run = |io: &IoExperiment, spoil| {
            let memory = Memory::new();
            let watch = Spoiler(memory.tree.clone(), spoil);
            let loaded = run_on(&memory, &Experiment::Io(io.clone()), dir.path(), 1, &watch).unwrap();
            memory.end(1);
            loaded
        };
        let planted = run(&io, |content| content[50_000] ^= 1);
        assert_eq!(planted.measured[1].runs[0].wrong_bytes, 1);
        assert!(planted.notes[0].contains("file.0: wrong byte at offset 50000"), "{:?}", planted.notes);
        (io.record_bytes, io.thread_bytes) = (512, 512 * 150);
        let short = run(&io, Vec::clear);
        let failure = short.failure.unwrap();
        assert!(failure.message.contains("100 operations of a thread failed"), "{failure}");
        assert_eq!((short.measured[0].runs.len(), short.measured[1].runs.len()), (1, 0));
    }
}

/// Stops at once.
struct Stopper;

impl Observer for Stopper {
    fn is_stopped(&self) -> bool {
        true
    }
}

#[test]
fn a_stop_closes_everything() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Memory::new());
    let mut io = io(FileSharing::OwnFiles, Access::Random, 4);
    io.seconds = Some(600);
    let loaded = run_on(&memory, &Experiment::Io(io), dir.path(), 1, &Stopper).unwrap();
    assert!(loaded.is_stopped && loaded.measured.iter().all(|of| of.runs.is_empty()));
    memory.end(5);
}
