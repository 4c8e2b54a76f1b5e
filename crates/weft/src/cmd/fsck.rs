//! `weft fsck`: the check of a cluster, stopped or running.

use crate::assembly::{check, prepare_process};
use crate::cli::FsckArgs;
use crate::control::{Control, Request};
use crate::output::{complain, print, print_json};
use crate::size::format_size;
use ::fsck::{Finding, Report, Verdict};
use mgmt::{StateDir, StatePaths, Superblock};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::exit;
use std::time::Duration;
use types::{Errno, Error, Result};

/// How long the check of a running cluster may take: it reads all of its data.
const PATIENCE: Duration = Duration::from_secs(14 * 24 * 3600);

/// Damage was found, and all of it put right, as fsck(8) tells it.
const EXIT_REPAIRED: i32 = 1;
/// Damage is left.
const EXIT_DAMAGED: i32 = 4;
/// It could not be checked.
const EXIT_FAILED: i32 = 8;

#[derive(Serialize)]
struct Answer<'a> {
    verdict: Verdict,
    #[serde(flatten)]
    report: &'a Report,
}

/// Checks, and says by its exit status what was found: this returns only when everything is in order.
pub fn run(args: &FsckArgs) -> Result<()> {
    let report = match open_and_check(args) {
        Ok(report) => report,
        Err(error) => {
            complain(&error);
            exit(EXIT_FAILED)
        }
    };
    let verdict = report.verdict();
    match args.json {
        true => print_json(&Answer { verdict, report: &report })?,
        false => print(&screen(&report)),
    }
    match verdict {
        Verdict::Clean => Ok(()),
        Verdict::Repaired => exit(EXIT_REPAIRED),
        Verdict::Damaged => exit(EXIT_DAMAGED),
    }
}

fn open_and_check(args: &FsckArgs) -> Result<Report> {
    let dir = std::path::absolute(&args.dir).map_err(|e| crate::output::os_error(args.dir.display(), &e))?;
    require_cluster(&dir)?;
    if let Some(mut control) = Control::connect(&dir)? {
        if args.repair {
            let message = format!(
                "the cluster in {} is running, and only a stopped one can be repaired",
                dir.display()
            );
            return Err(Error::new(Errno::EBUSY, message)
                .hint("weft fsck without --repair checks a running one; weft down stops it"));
        }
        return control.exchange_within(Request::Check, PATIENCE);
    }
    let state = StateDir::open_or_create(&dir, "")?;
    prepare_process()?;
    let shown = std::io::stderr().is_terminal();
    let report = check(&state, args.repair, move |what, done, total| {
        if shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K{what}: {done} of {total}");
        }
    });
    if shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    report
}

/// Unlike a start, a check makes nothing.
fn require_cluster(dir: &Path) -> Result<()> {
    if Superblock::read(&StatePaths::new(dir).superblock())?.is_some() {
        return Ok(());
    }
    let error = Error::new(Errno::ENOENT, format!("{} holds no cluster", dir.display()));
    Err(error.hint("name the state directory of a cluster with --dir"))
}

fn screen(report: &Report) -> String {
    let findings: String = report.findings.iter().map(line).collect();
    let unjudged: String = report.unjudged.iter().map(|copy| format!("not judged: {copy}\n")).collect();
    let left = report.findings.iter().filter(|finding| !finding.repaired).count();
    let repaired = report.findings.len() - left;
    let verdict = match report.verdict() {
        Verdict::Clean => "clean".to_owned(),
        Verdict::Repaired => format!("{repaired} faults repaired"),
        Verdict::Damaged => format!("{left} faults left, {repaired} repaired"),
    };
    let Report { files, directories, chunk_files, bytes, .. } = report;
    let read = format_size(*bytes);
    format!(
        "{findings}{unjudged}{verdict}: {files} files, {directories} directories, {chunk_files} chunk files with {read} checked\n"
    )
}

fn line(finding: &Finding) -> String {
    let place = finding.range.map_or(String::new(), |range| format!(", bytes {range}"));
    let state = if finding.repaired { "repaired: " } else { "" };
    let hint = if finding.repaired { String::new() } else { format!("  hint: {}\n", finding.remedy) };
    format!("{state}{}{place}: {}\n{hint}", finding.object, finding.cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::fsck::Kind;
    use types::ByteRange;

    fn finding(repaired: bool) -> Finding {
        Finding {
            kind: Kind::DamagedContent,
            object: "/a".into(),
            range: Some(ByteRange::new(0, 4096)),
            cause: "it is wrong".into(),
            remedy: "restore it".into(),
            repaired,
        }
    }

    #[test]
    fn what_is_left_comes_with_its_remedy() {
        assert!(screen(&Report::default()).starts_with("clean: 0 files"));
        let behind = Report { unjudged: vec!["the copy of group 5".into()], ..Report::default() };
        assert!(screen(&behind).starts_with("not judged: the copy of group 5\nclean: 0 files"));
        let mut report = Report { findings: vec![finding(true)], ..Report::default() };
        assert!(screen(&report).starts_with("repaired: /a, bytes 0..4096: it is wrong\n1 faults repaired: "));
        report.findings.push(finding(false));
        assert!(
            screen(&report).contains(
                "\n/a, bytes 0..4096: it is wrong\n  hint: restore it\n1 faults left, 1 repaired: "
            )
        );
    }

    #[test]
    fn where_no_cluster_is_nothing_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent");
        for dir in [dir.path(), &absent] {
            assert_eq!(require_cluster(dir).unwrap_err().errno, Errno::ENOENT);
        }
        assert!(!absent.exists() && dir.path().read_dir().unwrap().next().is_none());
    }
}
