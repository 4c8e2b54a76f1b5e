//! Seeds that are new in each test run: one of many runs finds bugs that the fixed seeds miss. A
//! failure shows the command that replays it; `WEFT_SIM_SEED=N` runs only that seed, in all
//! configurations.

use crate::hosts::{mirrored, resync_faults};
use sim::hosts::{HostsOptions, PowerCuts, run_hosts_seed};
use sim::{RunOptions, run_seed};

/// Seeds per configuration.
const SEEDS: usize = 4;
/// Faults of a run with several hosts: fewer than the default, since many short runs cover more
/// starts than few long ones.
const FAULTS: u32 = 5;

/// Returns small seeds, which are easy to copy.
fn seeds() -> Vec<u64> {
    match std::env::var("WEFT_SIM_SEED") {
        Ok(text) => vec![text.parse().expect("WEFT_SIM_SEED is a number")],
        Err(_) => (0..SEEDS).map(|_| rt::random_u64() >> 32).collect(),
    }
}

fn hosts_pass(options: HostsOptions) {
    for seed in seeds() {
        match run_hosts_seed(seed, HostsOptions { faults: FAULTS, ..options }) {
            Ok(summary) => assert!(summary.operations > 0, "seed {seed}: no operation returned"),
            Err(violation) => panic!("{violation}"),
        }
    }
}

#[test]
fn fresh_seeds_pass_on_one_machine() {
    for seed in seeds() {
        let options = RunOptions { rounds: 5, operations: 80, ..RunOptions::default() };
        match run_seed(seed, options) {
            Ok(summary) => assert!(summary.operations > 0, "seed {seed}: no operation returned"),
            Err(violation) => panic!("{violation}"),
        }
    }
}

#[test]
fn fresh_seeds_pass_on_hosts() {
    hosts_pass(HostsOptions { applications: 2, ..HostsOptions::default() });
}

#[test]
fn fresh_seeds_pass_with_several_clients_and_metadata_services() {
    hosts_pass(HostsOptions { clients: 2, applications: 1, metas: 2, ..HostsOptions::default() });
}

#[test]
fn fresh_seeds_pass_with_mirrored_files() {
    hosts_pass(HostsOptions { applications: 1, ..mirrored(2, PowerCuts::OneAtATime) });
}

#[test]
fn fresh_seeds_pass_with_faults_during_resyncs() {
    hosts_pass(HostsOptions { applications: 1, ..resync_faults(2) });
}
