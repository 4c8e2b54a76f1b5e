//! Experiments: operations, threads and files.

use serde::{Deserialize, Serialize};

/// One experiment: a kind of load with one thread count. Its operations run one after the other,
/// each as a phase that all threads start together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Experiment {
    /// Reads and writes of file content.
    Io(IoExperiment),
    /// Metadata operations on files.
    Meta(MetaExperiment),
}

/// Reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IoExperiment {
    /// Its name in reports; the same for all thread counts of one figure.
    pub name: String,
    /// Measured operations, in this order. Files that a read needs and that no earlier write has
    /// created are created first, unmeasured.
    pub operations: Vec<Operation>,
    /// Threads per client.
    pub threads: u32,
    /// How threads share files.
    pub sharing: FileSharing,
    /// Order of the accesses.
    pub access: Access,
    /// Bytes per transfer.
    pub record_bytes: u64,
    /// Bytes per thread: its own file, or its part of the shared one.
    pub thread_bytes: u64,
    /// Transfers in flight per thread.
    pub queue_depth: u32,
    /// Which caches may answer.
    pub caching: Caching,
    /// Longest duration of a phase, in seconds; random phases repeat their accesses until then.
    pub seconds: Option<u64>,
    /// Verifies every byte that is read.
    pub verify: bool,
}

/// Creations, stats, reads and removals.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MetaExperiment {
    /// Its name in reports.
    pub name: String,
    /// Measured operations, in this order.
    pub operations: Vec<Operation>,
    /// Threads per client.
    pub threads: u32,
    /// Files per thread.
    pub thread_files: u64,
    /// Bytes per file; 3901 in IO500's hard form.
    pub file_bytes: u64,
    /// Directories of the files.
    pub shape: TreeShape,
    /// Which caches may answer.
    pub caching: Caching,
}

/// Operation of a phase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Writes, with a sync at the end.
    Write,
    /// Reads.
    Read,
    /// Seven reads to three writes.
    Mixed,
    /// Creates files.
    Create,
    /// Reads attributes.
    Stat,
    /// Opens, reads and closes whole files.
    ReadFile,
    /// Removes files.
    Remove,
}

/// How threads share files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSharing {
    /// N-N: one file per thread.
    OwnFiles,
    /// N-1: one shared file, with a contiguous part per thread.
    Segments,
    /// N-1: one shared file, with records of the threads interleaved.
    Interleaved,
}

/// The order of accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// From the first to the last.
    Sequential,
    /// Random, over all records of the thread.
    Random,
}

/// Which caches may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caching {
    /// Bypasses the client's cache (`O_DIRECT`).
    Direct,
    /// Uses the client's cache, and drops it before a phase that reads.
    Cold,
    /// Leaves caches as they are: the result is one of caches, and is marked so.
    Warm,
}

/// Access path of the load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Through {
    /// System calls on a mount, or any other directory.
    #[default]
    Mount,
    /// The native client core, which a mount runs, without kernel and FUSE.
    Core,
}

/// Directories of a thread's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "form")]
pub enum TreeShape {
    /// Separate directories per thread, with its files spread over them.
    OwnDirectories {
        /// Number per thread.
        directories: u32,
    },
    /// One directory for all threads.
    SharedDirectory,
}
