//! `weft fsck`: the check of a cluster, stopped or running.

use super::orphans;
use crate::assembly::{check, check_names, prepare_process};
use crate::cli::FsckArgs;
use crate::control::{CheckParameters, CheckProgress, Control, Request};
use crate::exit::{ArgumentCheck, Exit, Failure, Outcome};
use crate::node_config::{self, NodeConfig};
use crate::output::{os_error, show};
use crate::progress::{Done, Progress};
use crate::size::format_size;
use ::fsck::{CheckOutcome, CheckReport, Finding, Kind};
use mgmt::StateDir;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result, Role};

/// Longest time for the check of a running cluster: it reads all of its data.
const TIMEOUT: Duration = Duration::from_secs(14 * 24 * 3600);

#[derive(Serialize)]
struct Answer<'a> {
    verdict: CheckOutcome,
    #[serde(flatten)]
    report: &'a CheckReport,
}

/// Runs the check, or handles what a repair has moved aside. The exit status shows the result.
pub fn run(args: &FsckArgs) -> Outcome {
    if let Some(what) = args.orphans {
        orphans::run(&args.dir.find()?, what, args.json)?;
        return Ok(Exit::Success);
    }
    require_absolute(args.path.as_deref()).or_usage()?;
    let failed = |error| Failure { exit: Exit::FsckFailed, error };
    let report = open_and_check(args).map_err(failed)?;
    let verdict = report.outcome();
    let answer = Answer { verdict, report: &report };
    show(args.json, &answer, || screen(&report)).map_err(failed)?;
    Ok(exit_of(verdict))
}

fn exit_of(verdict: CheckOutcome) -> Exit {
    match verdict {
        CheckOutcome::Clean => Exit::Success,
        CheckOutcome::Repaired => Exit::FsckRepaired,
        CheckOutcome::Damaged => Exit::FsckDamaged,
    }
}

fn require_absolute(path: Option<&str>) -> Result<()> {
    match path.is_none_or(|path| path.starts_with('/')) {
        true => Ok(()),
        false => {
            Err(Error::new(Errno::EINVAL, "a path to check must begin with /, the root of the file system")
                .hint("leave out the mount point"))
        }
    }
}

fn open_and_check(args: &FsckArgs) -> Result<CheckReport> {
    // Unlike a start, a check creates nothing: this refuses a directory without a cluster.
    let dir = args.dir.find()?;
    let forget = args.forget.as_ref().map(|file| create_loss_list(file)).transpose()?;
    let orders = CheckParameters {
        repair: args.repair,
        forget: forget.clone(),
        path: args.path.clone(),
        delete: args.delete,
        accept_loss: args.accept_loss,
    };
    let report = match Control::connect(&dir)? {
        Some(control) => ask(control, &dir, orders),
        None => check_offline(&dir, orders),
    };
    if let Some(file) = forget
        && file.metadata().is_ok_and(|meta| meta.len() == 0)
    {
        // Nothing was lost.
        let _ = std::fs::remove_file(file);
    }
    report
}

/// Creates the list of data that will be given up. If it can't be written, the command fails before
/// the check.
pub fn create_loss_list(file: &Path) -> Result<PathBuf> {
    let failed = |e| os_error(format_args!("can't make {}", file.display()), &e);
    let file = std::path::absolute(file).map_err(failed)?;
    let made = File::options().write(true).create_new(true).open(&file);
    made.map(|_| file.clone()).map_err(|e| {
        os_error(format_args!("can't make {}", file.display()), &e).hint("name a file that doesn't exist yet")
    })
}

/// Title of the progress until a part of the check has begun.
const BEGINNING: &str = "checking the file system";

fn show_progress(progress: &Progress, what: &str, done: u64, total: u64) {
    if !what.is_empty() {
        progress.update(what, Done::Things(done, Some(total).filter(|total| *total > 0)));
    }
}

fn ask(mut control: Control, dir: &Path, orders: CheckParameters) -> Result<CheckReport> {
    let query = |progress: &Progress| {
        if let Ok(CheckProgress { what, done, total }) = Control::ask(dir, Request::CheckProgress) {
            show_progress(progress, &what, done, total);
        }
    };
    Progress::start(BEGINNING)
        .during(query, || control.exchange_with_timeout(Request::Check { orders }, TIMEOUT))
}

fn check_offline(dir: &Path, orders: CheckParameters) -> Result<CheckReport> {
    let progress = Arc::new(Progress::start(BEGINNING));
    let shown = progress.clone();
    let update = move |what: &str, done, total| show_progress(&shown, what, done, total);
    let report = if node_config::is_node(dir) {
        require_names(dir, &orders)?;
        check_names(&StateDir::open(dir)?, orders, update)
    } else {
        let state = StateDir::open_or_create(dir, "")?;
        prepare_process()?;
        check(&state, orders, update)
    };
    progress.end();
    report
}

/// Checks that a stopped node allows this check: only names can be checked, on the management node.
fn require_names(dir: &Path, orders: &CheckParameters) -> Result<()> {
    let serve = format!("weft serve --dir {} --detach starts it", dir.display());
    let stopped = format!("{} is a node of a cluster, and the node is not running", dir.display());
    if !NodeConfig::read(dir)?.roles.contains(&Role::Mgmt) {
        return Err(Error::new(Errno::ENOTCONN, stopped)
            .hint(format!("{serve}; while all are stopped, the node with management can check names")));
    }
    if orders.forget.is_some() {
        return Err(Error::new(Errno::ENOTCONN, stopped)
            .hint(format!("{serve}; content is checked, and given up, only while the cluster runs")));
    }
    Ok(())
}

fn screen(report: &CheckReport) -> String {
    let findings: String = report.findings.iter().map(line).collect();
    let unjudged: String = report.unjudged.iter().map(|copy| format!("not checked: {copy}\n")).collect();
    let left = report.findings.iter().filter(|finding| !finding.repaired).count();
    let repaired = report.findings.len() - left;
    let verdict = match report.outcome() {
        CheckOutcome::Clean => "clean".to_owned(),
        CheckOutcome::Repaired => format!("{repaired} faults repaired"),
        CheckOutcome::Damaged => format!("{left} faults left, {repaired} repaired"),
    };
    let CheckReport { files, directories, chunk_files, bytes, .. } = report;
    let read = format_size(*bytes);
    format!(
        "{findings}{unjudged}{verdict}: {files} files, {directories} directories, {chunk_files} chunk files with {read} checked\n"
    )
}

fn line(finding: &Finding) -> String {
    let place = finding.range.map_or(String::new(), |range| format!(", bytes {range}"));
    let state = match (finding.repaired, finding.lost) {
        (true, true) => "lost, and zeros now: ",
        (true, false) => "repaired: ",
        (false, true) => "lost: ",
        (false, false) => "",
    };
    let node = finding.node.as_ref().map_or(String::new(), |node| format!(" (node {node})"));
    // Of repaired damage, only chunk files that were moved aside need further action.
    let moves_aside = matches!(finding.kind, Kind::StrayChunkFile | Kind::LongChunkFile);
    let needs_no_action = finding.repaired && (!moves_aside || finding.remedy.is_empty());
    let hint = if needs_no_action { String::new() } else { format!("  hint: {}\n", finding.remedy) };
    format!("{state}{}{place}: {}{node} [{}]\n{hint}", finding.object, finding.cause, finding.kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ByteRange;

    fn finding(repaired: bool) -> Finding {
        let mut finding = Finding::new(Kind::DamagedContent, "/a", "it is wrong", "restore it")
            .over(ByteRange::new(0, 4096));
        finding.repaired = repaired;
        finding
    }

    #[test]
    fn remaining_damage_is_shown_with_a_remedy() {
        assert!(screen(&CheckReport::default()).starts_with("clean: 0 files"));
        let behind = CheckReport { unjudged: vec!["the copy of group 5".into()], ..CheckReport::default() };
        assert!(screen(&behind).starts_with("not checked: the copy of group 5\nclean: 0 files"));
        let mut report = CheckReport { findings: vec![finding(true)], ..CheckReport::default() };
        assert!(
            screen(&report).starts_with(
                "repaired: /a, bytes 0..4096: it is wrong [damaged-content]\n1 faults repaired: "
            )
        );
        report.findings.push(finding(false));
        assert!(
            screen(&report).contains(
                "\n/a, bytes 0..4096: it is wrong [damaged-content]\n  hint: restore it\n1 faults left, 1 repaired: "
            )
        );
    }

    #[test]
    fn the_exit_status_shows_the_result() {
        let outcomes = [CheckOutcome::Clean, CheckOutcome::Repaired, CheckOutcome::Damaged];
        assert_eq!(outcomes.map(|outcome| exit_of(outcome).code()), [0, 1, 4]);
        assert_eq!(require_absolute(Some("a")).unwrap_err().errno, Errno::EINVAL);
        assert!(require_absolute(Some("/a")).is_ok() && require_absolute(None).is_ok());
    }

    #[test]
    fn lost_content_is_labelled() {
        let mut lost = finding(false);
        lost.lost = true;
        lost.node = Some("n1".into());
        assert_eq!(
            line(&lost),
            "lost: /a, bytes 0..4096: it is wrong (node n1) [damaged-content]\n  hint: restore it\n"
        );
        lost.repaired = true;
        assert!(line(&lost).starts_with("lost, and zeros now: /a"));
    }

    #[test]
    fn the_list_of_what_is_lost_must_be_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lost");
        create_loss_list(&file).unwrap();
        assert_eq!(create_loss_list(&file).unwrap_err().errno, Errno::EEXIST);
        assert_eq!(create_loss_list(&dir.path().join("absent/lost")).unwrap_err().errno, Errno::ENOENT);
    }
}
