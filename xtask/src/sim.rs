//! The whole-cluster simulation over many seeds.

use crate::build;
use std::process::Stdio;

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run only simulations whose name contains this.
    #[arg(long, default_value = "sim")]
    name: String,
}

/// Runs every simulated test of the workspace; each takes its seeds from the environment.
pub fn run(options: &Options) -> Result<(), String> {
    let mut command = build::cargo();
    command
        .args(["test", "--workspace", "--lib", "--tests", "--", &options.name, "--nocapture"])
        .env("WEFT_SIM_SEEDS", options.seeds.to_string())
        .env("WEFT_SIM_FIRST_SEED", options.first.to_string())
        .stdin(Stdio::null());
    println!("simulating {} seeds from {}", options.seeds, options.first);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "a simulation failed ({status}); replay one seed with: cargo xtask sim --seeds 1 --first SEED"
        )),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
