//! What an experiment is called, and what it needs.

use crate::experiment::{Access, Experiment, Operation};

/// Space of a file beyond its bytes: its entry, its attributes, its places.
const FILE_OVERHEAD: u64 = 1024;
/// Files take whole blocks.
const BLOCK: u64 = 4096;

impl Experiment {
    /// What reports call it.
    pub fn name(&self) -> &str {
        match self {
            Experiment::Io(io) => &io.name,
            Experiment::Meta(meta) => &meta.name,
        }
    }

    /// What is measured, in this order.
    pub fn operations(&self) -> &[Operation] {
        match self {
            Experiment::Io(io) => &io.operations,
            Experiment::Meta(meta) => &meta.operations,
        }
    }

    /// Threads of each client.
    pub fn threads(&self) -> u32 {
        match self {
            Experiment::Io(io) => io.threads,
            Experiment::Meta(meta) => meta.threads,
        }
    }

    /// Transfers under way in each thread.
    pub fn queue_depth(&self) -> u32 {
        match self {
            Experiment::Io(io) => io.queue_depth,
            Experiment::Meta(_) => 1,
        }
    }

    /// The order of transfers; that of files as such is any.
    pub fn access(&self) -> Access {
        match self {
            Experiment::Io(io) => io.access,
            Experiment::Meta(_) => Access::Random,
        }
    }

    /// Bytes of a transfer, or of a file where files are made.
    pub fn record_bytes(&self) -> u64 {
        match self {
            Experiment::Io(io) => io.record_bytes,
            Experiment::Meta(meta) => meta.file_bytes,
        }
    }

    /// Space that one client's files take, bytes; of small files with what they need beside their
    /// content.
    pub fn space_bytes(&self) -> u64 {
        match self {
            Experiment::Io(io) => u64::from(io.threads) * io.thread_bytes,
            Experiment::Meta(meta) => {
                let each = meta.file_bytes.next_multiple_of(BLOCK) + FILE_OVERHEAD;
                u64::from(meta.threads) * meta.thread_files * each
            }
        }
    }

    /// Memory for transfers under way, bytes.
    pub fn buffer_bytes(&self) -> u64 {
        u64::from(self.threads()) * u64::from(self.queue_depth()) * self.record_bytes()
    }
}
