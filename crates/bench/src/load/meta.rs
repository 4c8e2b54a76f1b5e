//! Metadata load: creations, stats, reads and removals.

use super::backend::{Backend, wait_for};
use super::content::Content;
use super::directory::with_context;
use super::io::NULL_OPERATIONS;
use super::kernel::drive;
use super::phase::{self, Shared, ThreadResult, Work};
use super::{ClientRank, Stage};
use crate::experiment::{MetaExperiment, Operation, TreeShape};
use rt::IoBuf;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use types::{Errno, Error, Result};

/// Runs one iteration: each operation in turn.
pub(super) fn iterate<P: Backend>(meta: &MetaExperiment, backend: &P, stage: &mut Stage<'_>) -> Result<()> {
    let (content, rank) = (contents(meta, stage.seed), stage.observer.rank());
    let job = Arc::new(Job { meta: meta.clone(), folder: stage.folder.to_path_buf(), content, rank });
    let (made, there) = (job.clone(), backend.clone());
    wait_for(backend, async move || made.make_directories(&there).await)??;
    let work = |operation| Arc::new(MetaWork { backend: backend.clone(), job: job.clone(), operation });
    let mut are_there = false;
    for (index, operation) in meta.operations.iter().copied().enumerate() {
        let files = u64::from(meta.threads) * meta.thread_files;
        let missing = match operation {
            Operation::Create if are_there => Some((Operation::Remove, "removing files")),
            Operation::Create => None,
            _ if are_there => None,
            _ => Some((Operation::Create, "making files")),
        };
        if let Some((before, what)) = missing {
            let plan = stage.plan(what, meta.threads, files, None);
            let outcome = phase::run(&plan, backend, &work(before))?;
            if outcome.is_stopped || stage.observer.is_stopped() {
                stage.stop();
                return Ok(());
            }
        }
        stage.prepare_caches(index, meta.caching);
        stage.observer.before_phase(operation, stage.folder);
        let plan = stage.plan(&format!("{operation:?}").to_lowercase(), meta.threads, files, None);
        let outcome = phase::run(&plan, backend, &work(operation))?;
        are_there = operation != Operation::Remove;
        if !stage.record_phase(index, outcome) {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the content of each file.
fn contents(meta: &MetaExperiment, seed: u64) -> IoBuf {
    let mut bytes = vec![0; meta.file_bytes as usize];
    Content::new(seed, 0).fill(&mut bytes, 0);
    IoBuf::from_slice(&bytes)
}

/// Parameters of the load.
struct Job {
    meta: MetaExperiment,
    folder: PathBuf,
    content: IoBuf,
    rank: ClientRank,
}

/// One operation on all files of a thread.
struct MetaWork<P> {
    backend: P,
    job: Arc<Job>,
    operation: Operation,
}

impl<P: Backend> Work for MetaWork<P> {
    type Prepared = ();

    async fn prepare(&self, _thread: u32) -> Result<()> {
        Ok(())
    }

    async fn work(&self, thread: u32, (): (), shared: &Arc<Shared>) -> Result<ThreadResult> {
        let run_operation = async |path: &Path, buffer: &mut IoBuf| self.run_operation(path, buffer).await;
        self.job.work(thread, self.operation, shared, run_operation).await
    }
}

impl<P: Backend> MetaWork<P> {
    /// Runs the operation on one file; returns the bytes transferred.
    async fn run_operation(&self, path: &Path, buffer: &mut IoBuf) -> Result<u64> {
        let (backend, content) = (&self.backend, &self.job.content);
        let length = content.len() as u64;
        let is_whole = |found: u64| match found == length {
            true => Ok(()),
            false => Err(Error::new(Errno::EIO, format!("{found} bytes instead of {length}"))),
        };
        match self.operation {
            Operation::Create => backend.create(path, content).await.map(|()| length),
            Operation::Stat => is_whole(backend.stat(path).await?).map(|()| 0),
            Operation::ReadFile => is_whole(backend.read_file(path, buffer).await?).map(|()| length),
            _ => backend.remove(path).await.map(|()| 0),
        }
    }
}

impl Job {
    async fn make_directories(&self, backend: &impl Backend) -> Result<()> {
        let TreeShape::OwnDirectories { directories } = self.meta.shape else { return Ok(()) };
        let make = async |path: PathBuf| {
            let made = backend.make_directory(&path).await;
            made.map_err(|error| with_context(format!("can't create {}", path.display()), error))
        };
        for thread in (0..self.meta.threads).map(|own| self.rank.thread(own, self.meta.threads)) {
            let own = self.folder.join(format!("t{thread}"));
            make(own.clone()).await?;
            for directory in 0..directories.max(1) {
                make(own.join(format!("d{directory}"))).await?;
            }
        }
        Ok(())
    }

    fn path(&self, thread: u32, file: u64) -> PathBuf {
        self.folder.join(match self.meta.shape {
            TreeShape::OwnDirectories { directories } => {
                format!("t{thread}/d{}/f{file}", file % u64::from(directories.max(1)))
            }
            TreeShape::SharedDirectory => format!("f{thread}.{file}"),
        })
    }

    /// Runs the operation on the files of one of this client's threads, one after the other.
    async fn work(
        &self,
        own: u32,
        operation: Operation,
        shared: &Shared,
        run_operation: impl AsyncFn(&Path, &mut IoBuf) -> Result<u64>,
    ) -> Result<ThreadResult> {
        // With several threads, a thread reads the files of another one.
        let thread = self.rank.thread(own, self.meta.threads);
        let reads = matches!(operation, Operation::Stat | Operation::ReadFile);
        let owner = if reads { self.rank.next(thread, self.meta.threads) } else { thread };
        let mut buffer = IoBuf::alloc(self.content.len() + 1);
        let mut tally = ThreadResult::new();
        for file in 0..self.meta.thread_files {
            let path = self.path(owner, file);
            let since = Instant::now();
            match run_operation(&path, &mut buffer).await {
                Ok(bytes) => tally.count(since, bytes),
                Err(error) => tally.fail(|| format!("{operation:?} of {}", path.display()), &error)?,
            }
            if shared.count_operation(tally.begun) {
                break;
            }
        }
        tally.ended = Instant::now();
        tally.is_complete = tally.operations == self.meta.thread_files;
        Ok(tally)
    }
}

/// Returns the generator's own time per file, in nanoseconds: the same loop without files.
pub(super) fn null_overhead_ns(meta: &MetaExperiment, operation: Operation) -> Result<f64> {
    let meta = MetaExperiment { threads: 1, thread_files: NULL_OPERATIONS, ..meta.clone() };
    let content = contents(&meta, 0);
    let job = Job { meta, folder: "weft-bench".into(), content, rank: ClientRank::SINGLE };
    let nothing = async |path: &Path, buffer: &mut IoBuf| {
        std::hint::black_box((path, buffer));
        Ok(0)
    };
    let tally = drive(job.work(0, operation, &Shared::new(None), nothing))?;
    Ok(tally.begun.elapsed().as_nanos() as f64 / NULL_OPERATIONS as f64)
}
