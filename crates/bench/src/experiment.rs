//! What is done by how many threads to which files.

use serde::{Deserialize, Serialize};

/// One experiment: a kind of load with one number of threads. Its operations run one after the
/// other, each as a phase that all threads begin together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Experiment {
    /// Bytes of files.
    Io(IoExperiment),
    /// Files as such.
    Meta(MetaExperiment),
}

/// Reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IoExperiment {
    /// What reports call it; the same for all numbers of threads of one figure.
    pub name: String,
    /// What is measured, in this order; files that a read needs and no write before it has made are
    /// made first, unmeasured.
    pub operations: Vec<Operation>,
    /// Threads of each client.
    pub threads: u32,
    /// Whose files they are.
    pub sharing: FileSharing,
    /// In which order records are touched.
    pub access: Access,
    /// Bytes of each transfer.
    pub record_bytes: u64,
    /// Bytes of each thread: its own file, or its part of the shared one.
    pub thread_bytes: u64,
    /// Transfers that a thread has under way at once.
    pub queue_depth: u32,
    /// Which caches may answer.
    pub caching: Caching,
    /// Ends a phase after so long, where there is that much to do; random phases begin anew until
    /// then.
    pub seconds: Option<u64>,
    /// Checks every byte that is read.
    pub verify: bool,
}

/// Creations, look-ups and removals.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MetaExperiment {
    /// What reports call it.
    pub name: String,
    /// What is measured, in this order.
    pub operations: Vec<Operation>,
    /// Threads of each client.
    pub threads: u32,
    /// Files of each thread.
    pub thread_files: u64,
    /// Bytes of each file; 3901 of the hard form of IO500.
    pub file_bytes: u64,
    /// Where the files are.
    pub shape: TreeShape,
    /// Which caches may answer.
    pub caching: Caching,
}

/// What a phase does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Writes bytes, and syncs them at the end.
    Write,
    /// Reads bytes.
    Read,
    /// Seven reads to three writes.
    Mixed,
    /// Makes files.
    Create,
    /// Asks for attributes.
    Stat,
    /// Opens, reads and closes whole files.
    ReadFile,
    /// Removes files.
    Remove,
}

/// Whose files bytes are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSharing {
    /// N-N: one of each thread.
    OwnFiles,
    /// N-1: one of all, each thread in its own part of it.
    Segments,
    /// N-1: one of all, records of the threads in turn.
    Interleaved,
}

/// The order of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// From the first to the last.
    Sequential,
    /// Any, over all that the thread has.
    Random,
}

/// Which caches may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caching {
    /// The client's is passed by (`O_DIRECT`).
    Direct,
    /// The client's is used, and dropped before a phase that reads.
    Cold,
    /// Whatever is there: a figure of caches, and called so.
    Warm,
}

/// Which way the load takes to the files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Through {
    /// System calls on a mount, or any other directory.
    #[default]
    Mount,
    /// The native client core, which a mount runs, without kernel and FUSE.
    Core,
}

/// Where the files of a thread are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "form")]
pub enum TreeShape {
    /// So many directories of each thread's own, with its files spread over them.
    OwnDirectories {
        /// Of each thread.
        directories: u32,
    },
    /// One directory of all.
    SharedDirectory,
}
