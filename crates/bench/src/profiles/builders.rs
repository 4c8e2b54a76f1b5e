//! Helpers to define profiles.

use crate::experiment::{
    Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, TreeShape,
};
use crate::names::{io_name, meta_name};

/// Returns the powers of two from the first to the last.
pub fn doubling(first: u32, last: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(first), |count| count.checked_mul(2)).take_while(move |count| *count <= last)
}

/// Parameters that all points of a figure of reads and writes share.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub operations: &'a [Operation],
    pub sharing: FileSharing,
    pub access: Access,
    pub record_bytes: u64,
    /// Bytes of all threads together.
    pub total_bytes: u64,
    pub caching: Caching,
    pub seconds: Option<u64>,
}

impl Load<'_> {
    /// Returns the experiment of one point.
    pub fn at(&self, threads: u32, queue_depth: u32) -> Experiment {
        let records = (self.total_bytes / u64::from(threads) / self.record_bytes).max(1);
        Experiment::Io(IoExperiment {
            name: io_name(self.sharing, self.access).into(),
            operations: self.operations.to_vec(),
            threads,
            sharing: self.sharing,
            access: self.access,
            record_bytes: self.record_bytes,
            thread_bytes: records * self.record_bytes,
            queue_depth,
            caching: self.caching,
            seconds: self.seconds,
            verify: false,
        })
    }
}

/// Returns the experiment that creates, stats, reads and removes files, with total numbers of files
/// and directories.
pub fn files(threads: u32, total_files: u64, total_directories: u32, file_bytes: u64) -> Experiment {
    let shape = TreeShape::OwnDirectories { directories: (total_directories / threads).max(1) };
    Experiment::Meta(MetaExperiment {
        name: meta_name(shape).into(),
        operations: vec![Operation::Create, Operation::Stat, Operation::ReadFile, Operation::Remove],
        threads,
        thread_files: (total_files / u64::from(threads)).max(1),
        file_bytes,
        shape,
        caching: Caching::Cold,
    })
}
