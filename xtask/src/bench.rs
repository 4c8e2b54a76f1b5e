//! Measurements that start their own cluster, each compared with a ceiling or another system on the
//! same machine in the same run.

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

/// The measurements.
#[derive(clap::Subcommand)]
enum Measurement {
    /// The load generator of `weft bench io` compared with fio on a directory, and its own CPU use.
    Generator(generator::Options),
    /// Common workloads on weft, on the file system below it, and on other mounted file systems.
    Peers(peers::Options),
    /// Several clients create files concurrently: each in its own directory, and all in one.
    SharedDir(shared_dir::Options),
    /// A resync of a mirrored group's member to another target: its speed, and its impact on
    /// applications.
    Rebuild(rebuild::Options),
    /// A cluster with slow network links, compared with the prediction of `weft plan`.
    Simulated(simulated::Options),
}

/// Runs the measurement and prints its result.
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
