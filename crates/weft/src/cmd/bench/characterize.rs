//! `weft bench characterize`: published experiments, scaled to this machine, as a report.

use super::cluster::{CeilingPolicy, ceilings, replica_count, require_measurable};
use super::progress::{ProgressDisplay, new_results};
use super::read::read;
use crate::cli::CharacterizeArgs;
use crate::exit::{ArgumentCheck, Exit, Failure};
use crate::output::{os_error, print, print_json};
use crate::progress::print_step;
use bench::characterize::{Generator, Part, Report, figures, files, find, list_commands, measure};
use bench::{Results, host, load};
use std::path::Path;
use types::{Errno, Error, Result};

/// Runs the experiments of a profile and writes the report.
pub fn run(args: &CharacterizeArgs) -> Result<(), Failure> {
    let profile = find(&args.profile).or_usage()?;
    let beside = args.beside.iter().map(|file| read(file)).collect::<Result<Vec<Results>>>()?;
    let machine = load::machine(&args.place);
    let host = host::host(&args.place, machine.memory_bytes).map_err(|e| {
        os_error(args.place.display(), &e).hint("give a directory that exists, such as the mount")
    })?;
    // Without a scale in the call, it is the machine that is too small.
    let too_large = if args.scale.is_some() { Exit::Usage } else { Exit::Failed };
    let (scale, figures) = figures(&profile, args.scale, &host).or_exit(too_large)?;
    let place = args.place.display().to_string();
    if args.list {
        print(&list_commands(&profile, scale, &figures, &place, args.iterations));
        return Ok(());
    }
    for experiment in figures.iter().flat_map(|figure| &figure.experiments) {
        load::check(experiment, &args.place)?;
    }
    if args.ceilings {
        require_measurable(&args.place)?;
    }
    // A folder that can't be written is reported before the load, not after it.
    std::fs::create_dir_all(&args.out).map_err(|e| os_error(args.out.display(), &e))?;
    let load = ProgressDisplay::new(&args.place)?;
    let mut results = new_results(machine);
    let wanted = if args.ceilings { CeilingPolicy::Always } else { CeilingPolicy::IfMissing };
    let (known, note) = ceilings(&args.place, wanted, &|| load.is_over())?;
    results.ceilings = known;
    results.notes.extend(note);
    let mut report = Report {
        profile,
        scale,
        iterations: args.iterations,
        place,
        copies: replica_count(&args.place),
        parts: figures.into_iter().map(|figure| Part { figure, measured: Vec::new() }).collect(),
        results,
        beside,
    };
    measure(&mut report, &load, &|line| print_step(&line));
    for (name, text) in files(&report)? {
        let file = args.out.join(name);
        std::fs::write(&file, text).map_err(|e| os_error(file.display(), &e))?;
    }
    if args.json {
        print_json(&report.results)?;
    } else {
        print(&format!("report: {}\n", args.out.join("index.html").display()));
    }
    check_complete(&report, load.is_over(), &args.out)?;
    Ok(())
}

/// Returns an error if nothing was measured or the run was interrupted; the report is written in
/// any case.
fn check_complete(report: &Report, is_over: bool, out: &Path) -> Result<()> {
    let report_is = format!("the report in {} has what was measured", out.display());
    if is_over {
        return Err(Error::new(Errno::EINTR, "ended by a signal before the end").hint(report_is));
    }
    if report.results.measured.is_empty() {
        let first = report.results.notes.first().cloned().unwrap_or_default();
        return Err(Error::new(Errno::EIO, format!("nothing could be measured: {first}")).hint(report_is));
    }
    Ok(())
}
