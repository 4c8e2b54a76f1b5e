//! The whole-cluster simulation over many seeds.

use crate::build;
use std::process::Stdio;

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run only this seed.
    #[arg(long)]
    seed: Option<u64>,
}

/// Builds and runs the simulator.
pub fn run(options: &Options) -> Result<(), String> {
    let mut command = build::cargo();
    command.args(["run", "--quiet", "--package", "sim", "--"]).stdin(Stdio::null());
    match options.seed {
        Some(seed) => command.args(["--seed", &seed.to_string()]),
        None => command.args(["--seeds", &options.seeds.to_string(), "--from", &options.from.to_string()]),
    };
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the simulation failed ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
