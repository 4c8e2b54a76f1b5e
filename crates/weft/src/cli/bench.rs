//! `weft bench`.

mod ceilings;
mod load;
mod report;

pub use ceilings::*;
pub use load::*;
pub use report::*;

use clap::Subcommand;

/// `weft bench ...`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Write and read files
    Io(BenchIoArgs),
    /// Create, stat, read and remove many files
    Meta(BenchMetaArgs),
    /// Generate load for another weft bench, controlled over stdin: it starts this on its clients
    Agent,
    /// Measure targets on their own nodes, without clients
    Storage(BenchStorageArgs),
    /// Measure the network between each pair of nodes over weft's own connections
    Net(BenchNetArgs),
    /// Measure memory copies, checksums and erasure coding on each node
    Cpu(BenchCpuArgs),
    /// Run published experiments, scaled to this machine, and write a report with figures
    Characterize(CharacterizeArgs),
    /// Compare two results: of weft, fio (JSON), IOR or mdtest
    Compare(CompareArgs),
}
