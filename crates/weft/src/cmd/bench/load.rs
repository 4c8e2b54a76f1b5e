//! `weft bench io` and `weft bench meta`: one kind of load, with each of several numbers of
//! threads.

use super::cluster::{CeilingPolicy, ceilings, replica_count};
use super::core::CoreLoad;
use super::progress::{ProgressDisplay, new_results};
use super::remote_clients::{RemoteClients, check_clients};
use crate::cli::{
    AccessArg, BenchIoArgs, BenchLoadOptions, BenchMetaArgs, IoOperationArg, MetaOperationArg, SharingArg,
    ThroughArg,
};
use crate::exit::{ArgumentCheck, Failure};
use crate::output::{Align, os_error, print, print_json, table};
use bench::characterize::Generator;
use bench::load::LoadResult;
use bench::{
    Access, Binding, Caching, Experiment, FileSharing, IoExperiment, Measured, MetaExperiment, Operation,
    Results, Through, TreeShape, binding_of, io_name, load, meta_name,
};
use std::path::Path;
use types::{Errno, Error, Result};

/// Default record sizes, in bytes.
const SEQUENTIAL_RECORD: u64 = 1 << 20;
const RANDOM_RECORD: u64 = 4096;
/// Default number of transfers in flight with random access.
const RANDOM_DEPTH: u32 = 16;
/// Default duration of a random phase, in seconds.
const RANDOM_SECONDS: u64 = 5;
/// Direct transfers are multiples of this, in bytes.
const DIRECT_UNIT: u64 = 4096;
/// Bytes per file of IO500's hard variant.
const HARD_BYTES: u64 = 3901;

/// `weft bench io`.
pub fn io(args: &BenchIoArgs) -> Result<(), Failure> {
    let experiments = args.threads.iter().map(|threads| Experiment::Io(io_experiment(args, *threads)));
    measure(&args.place, &args.how, experiments.collect())
}

/// `weft bench meta`.
pub fn meta(args: &BenchMetaArgs) -> Result<(), Failure> {
    let experiments = args.threads.iter().map(|threads| Experiment::Meta(meta_experiment(args, *threads)));
    measure(&args.place, &args.how, experiments.collect())
}

fn io_experiment(args: &BenchIoArgs, threads: u32) -> IoExperiment {
    let (access, is_random) = match args.access {
        AccessArg::Seq => (Access::Sequential, false),
        AccessArg::Random => (Access::Random, true),
    };
    let sharing = match args.sharing {
        SharingArg::Own => FileSharing::OwnFiles,
        SharingArg::Segments => FileSharing::Segments,
        SharingArg::Interleaved => FileSharing::Interleaved,
    };
    let record_bytes = args.record.unwrap_or(if is_random { RANDOM_RECORD } else { SEQUENTIAL_RECORD });
    let caching = match (args.warm, args.buffered, args.direct || record_bytes.is_multiple_of(DIRECT_UNIT)) {
        (true, ..) => Caching::Warm,
        (_, true, _) | (_, _, false) => Caching::Cold,
        (_, _, true) => Caching::Direct,
    };
    let operation = |one: &IoOperationArg| match one {
        IoOperationArg::Write => Operation::Write,
        IoOperationArg::Read => Operation::Read,
        IoOperationArg::Mixed => Operation::Mixed,
    };
    IoExperiment {
        name: io_name(sharing, access).into(),
        operations: args.operations.iter().map(operation).collect(),
        threads,
        sharing,
        access,
        record_bytes,
        thread_bytes: args.size,
        queue_depth: args.depth.unwrap_or(if is_random { RANDOM_DEPTH } else { 1 }),
        caching,
        seconds: args.seconds.or(is_random.then_some(RANDOM_SECONDS)),
        verify: args.verify,
    }
}

fn meta_experiment(args: &BenchMetaArgs, threads: u32) -> MetaExperiment {
    let shape = match args.shared || args.hard {
        true => TreeShape::SharedDirectory,
        false => TreeShape::OwnDirectories { directories: args.directories },
    };
    let operation = |one: &MetaOperationArg| match one {
        MetaOperationArg::Create => Operation::Create,
        MetaOperationArg::Stat => Operation::Stat,
        MetaOperationArg::ReadFile => Operation::ReadFile,
        MetaOperationArg::Remove => Operation::Remove,
    };
    MetaExperiment {
        name: meta_name(shape).into(),
        operations: args.operations.iter().map(operation).collect(),
        threads,
        thread_files: args.files,
        file_bytes: if args.hard { HARD_BYTES } else { args.size },
        shape,
        caching: Caching::Cold,
    }
}

/// Generators of the load.
struct LoadGenerators<'a> {
    place: &'a Path,
    how: &'a BenchLoadOptions,
    display: &'a ProgressDisplay<'a>,
    remote_clients: Option<RemoteClients>,
    /// Session of this process, if it generates load through the core itself.
    core: Option<CoreLoad>,
}

impl<'a> LoadGenerators<'a> {
    fn start(
        place: &'a Path,
        how: &'a BenchLoadOptions,
        display: &'a ProgressDisplay<'a>,
    ) -> Result<LoadGenerators<'a>> {
        let is_local = how.clients.is_empty();
        let core = match is_local && how.through != ThroughArg::Mount {
            true => Some(CoreLoad::start(place, how.cluster.as_deref())?),
            false => None,
        };
        let remote_clients = match is_local {
            true => None,
            false => Some(RemoteClients::start(&how.clients, &how.launch, display)?),
        };
        Ok(LoadGenerators { place, how, display, remote_clients, core })
    }

    /// Runs an experiment on the directory, one path after the other, and sorts the results by
    /// operation.
    fn run(&mut self, experiment: &Experiment) -> Result<LoadResult> {
        let paths: &[Through] = match self.how.through {
            ThroughArg::Mount => &[Through::Mount],
            ThroughArg::Core => &[Through::Core],
            ThroughArg::Both => &[Through::Mount, Through::Core],
        };
        let mut both = LoadResult::default();
        for through in paths {
            let result = match self.run_through(experiment, *through) {
                Ok(result) => result,
                Err(error) if both.measured.is_empty() => return Err(error),
                Err(error) => LoadResult { failure: Some(error), ..LoadResult::default() },
            };
            both.is_stopped |= result.is_stopped;
            both.notes.extend(result.notes);
            both.measured.extend(result.measured);
            both.failure = result.failure;
            if both.is_stopped || both.failure.is_some() {
                break;
            }
        }
        let order = experiment.operations();
        both.measured.sort_by_key(|of| order.iter().position(|operation| *operation == of.operation));
        Ok(both)
    }

    fn run_through(&mut self, experiment: &Experiment, through: Through) -> Result<LoadResult> {
        let (place, iterations) = (self.place, self.how.iterations);
        match (&mut self.remote_clients, &self.core, through) {
            (Some(remote_clients), ..) => {
                remote_clients.run(experiment, (place, through), iterations, self.display)
            }
            (None, Some(core), Through::Core) => core.run(experiment, iterations, self.display),
            _ => load::run(experiment, place, iterations, self.display),
        }
    }

    fn end(self) -> Result<()> {
        self.core.map_or(Ok(()), CoreLoad::end)
    }
}

fn measure(place: &Path, how: &BenchLoadOptions, experiments: Vec<Experiment>) -> Result<(), Failure> {
    experiments.iter().try_for_each(load::check_parameters).or_usage()?;
    check_clients(&how.clients, &how.launch).or_usage()?;
    // Impossible experiments and unwritable files are reported before the load, not after it.
    let clients = how.clients.len().max(1) as u32;
    for experiment in &experiments {
        load::check_for(experiment, place, clients)?;
    }
    let display = ProgressDisplay::new(place)?;
    let mut generators = LoadGenerators::start(place, how, &display)?;
    let measured = run_all(&mut generators, &experiments);
    let ended = generators.end();
    let (mut results, failure) = measured?;
    let failure = failure.or(ended.err());
    if let Some(failure) = &failure {
        results.notes.push(format!("ended by a failure: {failure}"));
    }
    show_results(&results, how)?;
    failure.map_or_else(|| check_results(&results, display.is_over()), Err)?;
    Ok(())
}

/// Runs all experiments. Also returns the failure that ended them early, if any.
fn run_all(
    generators: &mut LoadGenerators<'_>,
    experiments: &[Experiment],
) -> Result<(Results, Option<Error>)> {
    let LoadGenerators { place, how, display, .. } = *generators;
    if let Some(out) = &how.out {
        std::fs::write(out, "").map_err(|e| os_error(out.display(), &e))?;
    }
    let mut results = new_results(load::machine(place));
    results.machine.clients = how.clients.len().max(1) as u32;
    let (known, note) = ceilings(place, CeilingPolicy::Stored, &|| display.is_over())?;
    results.ceilings = known;
    results.notes.extend(note);
    let copies = replica_count(place);
    // The core count of other machines isn't known, only their CPU time.
    let cores = if how.clients.is_empty() { results.machine.cores } else { 0 };
    for experiment in experiments {
        let result = generators.run(experiment);
        display.clear();
        let result =
            result.unwrap_or_else(|error| LoadResult { failure: Some(error), ..LoadResult::default() });
        for mut measured in result.measured.into_iter().filter(|measured| !measured.runs.is_empty()) {
            measured.binding = binding_of(&results.ceilings, cores, &measured, experiment.access(), copies);
            results.measured.push(measured);
        }
        for note in result.notes {
            if !results.notes.contains(&note) {
                results.notes.push(note);
            }
        }
        if result.is_stopped || result.failure.is_some() {
            return Ok((results, result.failure));
        }
    }
    Ok((results, None))
}

/// Writes the results to the file, if one is named, and prints them.
fn show_results(results: &Results, how: &BenchLoadOptions) -> Result<()> {
    if let Some(out) = &how.out {
        let text = serde_json::to_string_pretty(results)
            .map_err(|e| Error::new(Errno::EPROTO, format!("the results can't be written as JSON: {e}")))?;
        std::fs::write(out, text).map_err(|e| os_error(out.display(), &e))?;
    }
    match how.json {
        true => print_json(results)?,
        false => print(&screen(results)),
    }
    Ok(())
}

/// Returns an error for wrong bytes, failed operations or an interrupted run; the results are shown
/// in any case.
fn check_results(results: &Results, is_over: bool) -> Result<()> {
    let runs = || results.measured.iter().flat_map(|measured| &measured.runs);
    let (wrong, errors) =
        (runs().map(|run| run.wrong_bytes).sum::<u64>(), runs().map(|run| run.errors).sum::<u64>());
    if wrong > 0 {
        return Err(Error::new(Errno::EIO, format!("{wrong} bytes were read that were never written"))
            .hint("the notes name the first one; weft fsck shows whether replicas differ"));
    }
    if errors > 0 {
        return Err(Error::new(Errno::EIO, format!("{errors} operations failed"))
            .hint("the notes name the first one"));
    }
    if is_over {
        return Err(Error::new(Errno::EINTR, "ended by a signal before the end")
            .hint("what was measured is shown; the files are removed"));
    }
    Ok(())
}

/// Formats the results as a table with notes.
fn screen(results: &Results) -> String {
    let heading = [
        ("", Align::Left),
        ("threads", Align::Right),
        ("MiB/s", Align::Right),
        ("1/s", Align::Right),
        ("least to most", Align::Right),
        ("p50, us", Align::Right),
        ("p99, us", Align::Right),
        ("CPU, us each", Align::Right),
        ("% of ceiling", Align::Left),
    ];
    let is_by_core = results.measured.iter().any(|one| one.through == Through::Core);
    let rows: Vec<_> = results.measured.iter().map(|one| row(one, is_by_core)).collect();
    let mut text = table(heading, &rows);
    let mut cached: Vec<&String> = results.measured.iter().filter_map(|one| one.cached.as_ref()).collect();
    cached.dedup();
    let own = generator_overhead(&results.measured);
    let exceeded = bench::exceeded(results.measured.iter().filter_map(|one| one.binding.as_ref()));
    for note in cached.into_iter().chain(&results.notes).chain(&exceeded).chain(&own) {
        text += &format!("note: {note}\n");
    }
    text
}

/// Returns a note about the overhead of the load generator, from minimum to maximum.
fn generator_overhead(measured: &[Measured]) -> Option<String> {
    let own = || measured.iter().filter_map(|one| one.generator_ns);
    let (least, most) = (own().reduce(f64::min)?, own().reduce(f64::max)?);
    Some(format!(
        "weft bench itself takes {least:.0} to {most:.0} ns per operation (one at a time, against a target that does nothing)"
    ))
}

/// Formats a share like `48 %, storage-read`.
fn share(binding: &Binding) -> String {
    let Binding { limit, share, .. } = binding;
    format!("{:.0} %, {}", share * 100.0, bench::figure_parts::serde_name(limit))
}

fn row(measured: &Measured, shows_path: bool) -> [String; 9] {
    let (bytes, ops) = (measured.bytes_per_s().unwrap_or_default(), measured.ops_per_s().unwrap_or_default());
    let mib = |rate: f64| if rate > 0.0 { format!("{:.0}", rate / f64::from(1 << 20)) } else { "-".into() };
    // Latencies and CPU time are those of the median run.
    let mut runs: Vec<&bench::Run> = measured.runs.iter().collect();
    runs.sort_by(|a, b| a.ops_per_s().total_cmp(&b.ops_per_s()));
    let middle = runs.get(runs.len().saturating_sub(1) / 2);
    let latency = middle.and_then(|run| run.latency);
    let quantile = |of: &dyn Fn(&bench::Latency) -> f64| {
        latency.as_ref().map_or("-".into(), |l| format!("{:.0}", of(l)))
    };
    let path = match (shows_path, measured.through) {
        (false, _) => "",
        (true, Through::Mount) => ", mount",
        (true, Through::Core) => ", core",
    };
    let cpu = middle.and_then(|run| Some(run.cpu_s? * 1e6 / run.operations.max(1) as f64));
    [
        format!("{}, {}{path}", measured.experiment, name(measured.operation)),
        measured.threads.to_string(),
        mib(bytes.0),
        format!("{:.0}", ops.0),
        format!("{:.0} to {:.0}", ops.1, ops.2),
        quantile(&|latency| latency.p50_us),
        quantile(&|latency| latency.p99_us),
        cpu.map_or("-".into(), |us| format!("{us:.0}")),
        measured.binding.as_ref().map_or("-".into(), share),
    ]
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "write",
        Operation::Read => "read",
        Operation::Mixed => "70/30",
        Operation::Create => "create",
        Operation::Stat => "stat",
        Operation::ReadFile => "open + read",
        Operation::Remove => "remove",
    }
}
