//! Creations, look-ups and removals.

use super::content::Content;
use super::folder::failed;
use super::io::NULL_OPERATIONS;
use super::phase::{self, Shared, Tally};
use super::{Seat, Stage};
use crate::experiment::{MetaExperiment, Operation, TreeShape};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use types::Result;

/// One iteration: each operation in turn.
pub(super) fn iterate(meta: &MetaExperiment, stage: &mut Stage<'_>) -> Result<()> {
    let (content, seat) = (contents(meta, stage.seed), stage.watch.seat());
    let job = Job { meta, folder: stage.folder, content, seat };
    job.make_directories()?;
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
            let outcome = job.phase(&plan, before)?;
            if outcome.is_stopped || stage.watch.is_stopped() {
                stage.stop();
                return Ok(());
            }
        }
        stage.make_cold(index, meta.caching);
        stage.watch.before(operation, stage.folder);
        let plan = stage.plan(&format!("{operation:?}").to_lowercase(), meta.threads, files, None);
        let outcome = job.phase(&plan, operation)?;
        are_there = operation != Operation::Remove;
        if !stage.keep(index, outcome) {
            return Ok(());
        }
    }
    Ok(())
}

/// What each file holds.
fn contents(meta: &MetaExperiment, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; meta.file_bytes as usize];
    Content::new(seed, 0).fill(&mut bytes, 0);
    bytes
}

struct Job<'a> {
    meta: &'a MetaExperiment,
    folder: &'a Path,
    content: Vec<u8>,
    seat: Seat,
}

impl Job<'_> {
    fn make_directories(&self) -> Result<()> {
        let TreeShape::OwnDirectories { directories } = self.meta.shape else { return Ok(()) };
        for thread in (0..self.meta.threads).map(|own| self.seat.thread(own, self.meta.threads)) {
            for directory in 0..directories.max(1) {
                let path = self.folder.join(format!("t{thread}/d{directory}"));
                fs::create_dir_all(&path)
                    .map_err(|error| failed(format!("can't make {}", path.display()), &error))?;
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

    fn phase(&self, plan: &phase::Plan<'_>, operation: Operation) -> Result<phase::Outcome> {
        let touch = |path: &Path, buffer: &mut [u8]| self.touch(path, operation, buffer);
        phase::run(plan, |_| Ok(()), |thread, (), shared| self.work(thread, operation, shared, touch))
    }

    /// Does it to the files of one of this client's threads, one after the other.
    fn work(
        &self,
        own: u32,
        operation: Operation,
        shared: &Shared,
        touch: impl Fn(&Path, &mut [u8]) -> io::Result<u64>,
    ) -> Result<Tally> {
        // Who looks isn't who made it, where there are several.
        let thread = self.seat.thread(own, self.meta.threads);
        let is_looking = matches!(operation, Operation::Stat | Operation::ReadFile);
        let owner = if is_looking { self.seat.next(thread, self.meta.threads) } else { thread };
        let mut buffer = vec![0; self.content.len() + 1];
        let mut tally = Tally::new();
        for file in 0..self.meta.thread_files {
            let path = self.path(owner, file);
            let since = Instant::now();
            match touch(&path, &mut buffer) {
                Ok(bytes) => tally.count(since, bytes),
                Err(error) => tally.fail(|| format!("{operation:?} of {}", path.display()), &error)?,
            }
            if shared.is_over(tally.begun) {
                break;
            }
        }
        tally.ended = Instant::now();
        tally.is_complete = tally.operations == self.meta.thread_files;
        Ok(tally)
    }

    /// Does it to one file; the bytes that were moved.
    fn touch(&self, path: &Path, operation: Operation, buffer: &mut [u8]) -> io::Result<u64> {
        let length = self.content.len() as u64;
        match operation {
            Operation::Create => {
                let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
                file.write_all(&self.content)?;
                Ok(length)
            }
            Operation::Stat => {
                let found = fs::symlink_metadata(path)?.len();
                if found == length {
                    Ok(0)
                } else {
                    Err(io::Error::other(format!("{found} bytes instead of {length}")))
                }
            }
            Operation::ReadFile => {
                let mut file = File::open(path)?;
                let mut done = 0;
                loop {
                    match file.read(&mut buffer[done..])? {
                        0 => break,
                        count => done += count,
                    }
                }
                if done as u64 == length {
                    Ok(length)
                } else {
                    Err(io::Error::other(format!("{done} bytes instead of {length}")))
                }
            }
            _ => fs::remove_file(path).map(|()| 0),
        }
    }
}

/// What the generator itself spends on each file, nanoseconds: the same loop without files.
pub(super) fn null_overhead_ns(meta: &MetaExperiment, operation: Operation) -> Result<f64> {
    let meta = MetaExperiment { threads: 1, thread_files: NULL_OPERATIONS, ..meta.clone() };
    let content = contents(&meta, 0);
    let job = Job { meta: &meta, folder: Path::new("weft-bench"), content, seat: Seat::ALONE };
    let nothing = |path: &Path, buffer: &mut [u8]| {
        std::hint::black_box((path, buffer));
        Ok(0)
    };
    let tally = job.work(0, operation, &Shared::new(None), nothing)?;
    Ok(tally.begun.elapsed().as_nanos() as f64 / NULL_OPERATIONS as f64)
}
