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
    /// Make, look at, read and remove many files
    Meta(BenchMetaArgs),
    /// Make load as another weft bench orders it on standard input, which starts this on its
    /// clients
    Agent,
    /// Measure what targets give on their own nodes, without clients
    Storage(BenchStorageArgs),
    /// Measure what each pair of nodes gives over weft's own connections
    Net(BenchNetArgs),
    /// Measure copies in memory, checksums and erasure coding on each node
    Cpu(BenchCpuArgs),
    /// Run published experiments, fitted to this machine, and write a report with figures
    Characterize(CharacterizeArgs),
    /// Put two results beside each other: of weft, fio (JSON), IOR or mdtest
    Compare(CompareArgs),
}
