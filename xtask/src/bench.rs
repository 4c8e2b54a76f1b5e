//! Measurements that bring their own cluster, each beside a ceiling or another system on the same
//! machine in the same run.

mod document;
mod generator;
mod node;
mod peers;
mod rebuild;
mod shared_dir;
mod simulated;

use crate::e2e::cleanup;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    what: Measurement,
}

/// What is measured.
#[derive(clap::Subcommand)]
enum Measurement {
    /// The load generator of `weft bench io` beside fio on a directory, and what it takes for
    /// itself.
    Generator(generator::Options),
    /// The common workloads on weft, on the file system below it, and on other file systems that
    /// are mounted here.
    Peers(peers::Options),
    /// Several clients create files at once: each in a directory of its own, and all in one.
    SharedDir(shared_dir::Options),
    /// A member of a mirrored group is rebuilt on another target: how fast, and what programs lose
    /// meanwhile.
    Rebuild(rebuild::Options),
    /// A cluster on wires that carry little, beside what the simulation of `weft plan` says of it.
    Simulated(simulated::Options),
}

/// Measures, and prints what came of it.
pub fn run(options: &Options) -> Result<(), String> {
    cleanup::on_interrupt()?;
    match &options.what {
        Measurement::Generator(options) => generator::run(options),
        Measurement::Peers(options) => peers::run(options),
        Measurement::SharedDir(options) => shared_dir::run(options),
        Measurement::Rebuild(options) => rebuild::run(options),
        Measurement::Simulated(options) => simulated::run(options),
    }
}
