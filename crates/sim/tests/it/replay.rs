//! A seed determines its run in any process, and the command shown with a failure replays it.

use clap::Parser;
use sim::RunOptions;
use sim::command::{Command as Arguments, Replay, Simulation};
use sim::hosts::{HostsOptions, PowerCuts, run_hosts_seed};
use std::process::{Command, Stdio};
use types::Scheme;

fn simulator(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the simulator in two concurrent processes and compares their output: each seed's operations
/// and the digest of its decisions, messages, writes and results, with timestamps.
fn is_the_same_in_two_processes(arguments: &[&str]) {
    let running = [(); 2].map(|()| simulator(arguments).spawn().expect("the simulator starts"));
    let [first, second] = running.map(|process| {
        let output = process.wait_with_output().expect("the simulator ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("it prints text")
    });
    assert!(first.contains("fingerprint"), "{first}");
    assert_eq!(first, second, "{arguments:?}");
}

#[test]
fn a_run_on_one_machine_is_the_same_in_another_process() {
    is_the_same_in_two_processes(&["--seeds", "4", "--rounds", "5", "--operations", "80", "--fingerprints"]);
}

#[test]
fn a_run_on_hosts_is_the_same_in_another_process() {
    is_the_same_in_two_processes(&["--seeds", "4", "--fingerprints", "hosts"]);
    let several = ["hosts", "--clients", "3", "--metas", "2", "--shared-writes", "--faults", "10"];
    is_the_same_in_two_processes(&[&["--seeds", "2", "--fingerprints"][..], &several].concat());
}

#[test]
fn a_run_with_mirrored_files_is_the_same_in_another_process() {
    let mirrored = ["hosts", "--clients", "2", "--scheme", "mirror:2", "--faults", "4"];
    for power_cuts in ["one-at-a-time", "synced"] {
        let arguments = [&["--seed", "7", "--fingerprints"], &mirrored[..], &["--power-cuts", power_cuts]];
        is_the_same_in_two_processes(&arguments.concat());
    }
}

/// Returns the arguments of a command after those that build and start the simulator.
fn words_of(command: &str) -> Vec<&str> {
    let arguments = command.strip_prefix("cargo run -p sim -- ").expect("it can be pasted");
    arguments.split_whitespace().collect()
}

/// Returns options of which none has its default value.
fn all_options() -> HostsOptions {
    let usual = HostsOptions::default();
    HostsOptions {
        clients: 2,
        applications: 4,
        storages: 6,
        racks: 3,
        metas: 5,
        faults: 7,
        shared_writes: !usual.shared_writes,
        holes: !usual.holes,
        metas_crash: !usual.metas_crash,
        clients_crash: !usual.clients_crash,
        separate_store: !usual.separate_store,
        power_cuts: PowerCuts::OneAtATime,
        store_power: !usual.store_power,
        scheme: Scheme::Mirror(3),
        reports_differences: !usual.reports_differences,
        write_behind: !usual.write_behind,
        long_records: !usual.long_records,
        faults_during_resync: !usual.faults_during_resync,
        kill_all: !usual.kill_all,
        cut_off_pairs: !usual.cut_off_pairs,
    }
}

#[test]
fn the_command_that_is_shown_has_all_options() {
    let forms = [
        Simulation::Machine(RunOptions::default()),
        Simulation::Machine(RunOptions { rounds: 3, operations: 7, intent_log: false }),
        Simulation::Hosts(HostsOptions::default()),
        Simulation::Hosts(all_options()),
    ];
    for (seed, form) in (u64::MAX - 9..).zip(forms) {
        let shown = Replay { seed, simulation: form }.to_string();
        let words = ["sim"].into_iter().chain(words_of(&shown));
        let parsed = Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert_eq!((parsed.seeds(), parsed.simulation()), (seed..seed + 1, form), "{shown}");
    }
}

/// Runs the command that a violation shows in another process, and expects the same violation.
fn is_replayed(violation: &str) {
    let (_, command) = violation.split_once("to replay: ").expect("a violation shows how to replay it");
    let output = simulator(&words_of(command.trim_end())).output().expect("the simulator starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{command}: nothing fails");
    assert_eq!(errors.trim_end(), violation.trim_end(), "{command}");
}

#[test]
fn a_failure_on_one_machine_is_replayed_by_the_command_that_it_shows() {
    let options = RunOptions { rounds: 5, operations: 80, intent_log: false };
    let violation = (0..20).find_map(|seed| sim::run_seed(seed, options).err()).expect("some seed fails");
    is_replayed(&violation.to_string());
}

#[test]
fn a_failure_on_hosts_is_replayed_by_the_command_that_it_shows() {
    let options =
        HostsOptions { applications: 2, power_cuts: PowerCuts::Unsynced, ..HostsOptions::default() };
    let violation = (0..40).find_map(|seed| run_hosts_seed(seed, options).err()).expect("some seed fails");
    is_replayed(&violation.to_string());
}
