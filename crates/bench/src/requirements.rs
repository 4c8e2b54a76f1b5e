//! Name and resource requirements of an experiment.

use crate::experiment::{Access, Experiment, Operation};

/// Space of a file beyond its content: directory entry, inode, extents. In bytes.
const FILE_OVERHEAD: u64 = 1024;
/// Files take whole blocks.
const BLOCK: u64 = 4096;

impl Experiment {
    /// Returns its name in reports.
    pub fn name(&self) -> &str {
        match self {
            Experiment::Io(io) => &io.name,
            Experiment::Meta(meta) => &meta.name,
        }
    }

    /// Returns the measured operations, in this order.
    pub fn operations(&self) -> &[Operation] {
        match self {
            Experiment::Io(io) => &io.operations,
            Experiment::Meta(meta) => &meta.operations,
        }
    }

    /// Returns the threads per client.
    pub fn threads(&self) -> u32 {
        match self {
            Experiment::Io(io) => io.threads,
            Experiment::Meta(meta) => meta.threads,
        }
    }

    /// Returns the transfers in flight per thread.
    pub fn queue_depth(&self) -> u32 {
        match self {
            Experiment::Io(io) => io.queue_depth,
            Experiment::Meta(_) => 1,
        }
    }

    /// Returns the order of transfers; random for metadata operations.
    pub fn access(&self) -> Access {
        match self {
            Experiment::Io(io) => io.access,
            Experiment::Meta(_) => Access::Random,
        }
    }

    /// Returns the bytes per transfer, or per file in metadata experiments.
    pub fn record_bytes(&self) -> u64 {
        match self {
            Experiment::Io(io) => io.record_bytes,
            Experiment::Meta(meta) => meta.file_bytes,
        }
    }

    /// Returns the space for one client's files in bytes; for small files including their overhead.
    pub fn space_bytes(&self) -> u64 {
        match self {
            Experiment::Io(io) => u64::from(io.threads) * io.thread_bytes,
            Experiment::Meta(meta) => {
                let each = meta.file_bytes.next_multiple_of(BLOCK) + FILE_OVERHEAD;
                u64::from(meta.threads) * meta.thread_files * each
            }
        }
    }

    /// Returns the memory for transfers in flight, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        u64::from(self.threads()) * u64::from(self.queue_depth()) * self.record_bytes()
    }
}
