//! `weft doctor`: checks a machine, and names each fix.

use crate::cli::DoctorArgs;
use crate::discovery::{self, CLIENT_FILE, NODES};
use crate::exit::{Exit, Outcome};
use crate::node_config::{ClusterFile, DEFAULT_LISTEN, NodeConfig, is_node};
use crate::output::{Align, os_error, print, print_json, table};
use doctor::read::Subjects;
use doctor::{Clock, Finding, IoUring, Purpose, State, examine};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// The document of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    /// The worst state.
    verdict: State,
    /// Results of all checks.
    findings: &'a [Finding],
    /// What `--apply` changed.
    applied: &'a [String],
}

/// Runs the command. The exit status shows the worst state.
pub fn run(args: &DoctorArgs) -> Outcome {
    let (subjects, purpose) = subjects(args)?;
    let mut findings = examine_machine(&subjects, purpose);
    let mut applied = Vec::new();
    if args.apply {
        for fix in findings.iter().filter_map(|finding| finding.fix.as_ref()) {
            applied.push(fix.apply().map_err(|e| {
                Error::new(Errno::EACCES, format!("a change was not made: {e}"))
                    .hint("run it as root, outside of a container: sudo weft doctor --apply")
            })?);
        }
        if !applied.is_empty() {
            findings = examine_machine(&subjects, purpose);
        }
    }
    let verdict = findings.iter().map(|finding| finding.state).max().unwrap_or(State::Good);
    match args.json {
        true => print_json(&Report { verdict, findings: &findings, applied: &applied })?,
        false => print(&screen(&findings, &applied)),
    }
    Ok(match verdict {
        State::Good => Exit::Success,
        State::Warning => Exit::DoctorWarning,
        State::Error => Exit::DoctorError,
    })
}

fn examine_machine(subjects: &Subjects, purpose: Purpose) -> Vec<Finding> {
    let io_uring = match rt::io_uring_support() {
        Ok(support) if support.missing.is_empty() => {
            IoUring::Usable { fallbacks: support.fallbacks().into_iter().map(String::from).collect() }
        }
        Ok(support) => IoUring::Lacks { operations: support.missing },
        Err(e) => IoUring::Refused { cause: os_error("a ring can't be set up", &e).message.into_owned() },
    };
    let clock = match rt::is_clock_synchronized() {
        Some(true) => Clock::Synchronized,
        Some(false) => Clock::Unsynchronized,
        None => Clock::Unknown,
    };
    examine(&doctor::read::facts(subjects, io_uring, clock), purpose)
}

/// Returns what to check, from the options, and from the nodes and the cluster file of the machine
/// if there are no options. A machine without either may become both.
fn subjects(args: &DoctorArgs) -> Result<(Subjects, Purpose)> {
    let mut subjects = Subjects {
        listen: args.listen.clone(),
        dirs: args.target_dir.clone(),
        management: args.management.clone(),
    };
    let is_specific = args.dir.is_some() || args.cluster_file.is_some();
    let nodes = match &args.dir {
        Some(dir) => vec![dir.clone()],
        None if is_specific => Vec::new(),
        None => discovery::nodes_in(Path::new(NODES)),
    };
    for dir in &nodes {
        add_node(&mut subjects, dir)?;
    }
    let client = match &args.cluster_file {
        Some(file) => Some(file.clone()),
        None if is_specific => None,
        None => Some(PathBuf::from(CLIENT_FILE)).filter(|file| file.exists()),
    };
    if let Some(file) = &client {
        match ClusterFile::read(file) {
            Ok(file) => subjects.management.extend(file.management),
            // Only root may read it; the other checks are for all users.
            Err(error) if error.errno == Errno::EACCES && args.cluster_file.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    let runs_services = !nodes.is_empty() || !args.listen.is_empty() || !args.target_dir.is_empty();
    let is_client = client.is_some();
    let purpose =
        if runs_services || is_client { Purpose { is_node: runs_services, is_client } } else { Purpose::ALL };
    if purpose.is_node && subjects.listen.is_empty() {
        subjects.listen.extend(DEFAULT_LISTEN.parse::<SocketAddr>());
    }
    subjects.management.sort();
    subjects.management.dedup();
    Ok((subjects, purpose))
}

/// Adds what a node uses. A directory that isn't a node yet may become one.
fn add_node(subjects: &mut Subjects, dir: &Path) -> Result<()> {
    subjects.dirs.push(dir.to_path_buf());
    if !is_node(dir) {
        return Ok(());
    }
    let node = NodeConfig::read(dir)?;
    subjects.listen.extend(&node.listen);
    subjects.listen.extend(&node.api);
    subjects.dirs.extend(node.targets.into_iter().map(|target| target.path));
    subjects.management.extend(node.management);
    Ok(())
}

fn screen(findings: &[Finding], applied: &[String]) -> String {
    let rows: Vec<[String; 3]> = findings
        .iter()
        .map(|finding| [state_name(finding.state).into(), finding.check.into(), finding.what.clone()])
        .collect();
    let heading = [("state", Align::Left), ("check", Align::Left), ("what", Align::Left)];
    let mut text = table(heading, &rows);
    for fix in applied {
        text += &format!("changed: {fix}\n");
    }
    for finding in findings.iter().filter(|finding| !finding.hint.is_empty()) {
        let how = if finding.fix.is_some() { " (weft doctor --apply does it)" } else { "" };
        let code = finding.code.map_or(String::new(), |code| format!(" [{}]", code.name()));
        let (state, what, hint) = (state_name(finding.state), &finding.what, &finding.hint);
        text += &format!("\n{state}: {what}{code}\n  hint: {hint}{how}\n");
    }
    text
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Warning => "warning",
        State::Error => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_follow_the_table_and_say_what_apply_does() {
        let facts = doctor::Facts {
            kernel: doctor::KernelVersion { major: 6, minor: 18 },
            sysctls: vec![doctor::Sysctl { name: "vm.zone_reclaim_mode", value: 1 }],
            ..doctor::Facts::default()
        };
        let node = Purpose { is_node: true, is_client: false };
        let text = screen(&examine(&facts, node), &["x=1".into()]);
        assert!(text.starts_with("state    check"), "{text}");
        assert!(text.contains("changed: x=1"), "{text}");
        assert!(text.contains("free memory [numa-reclaim-on]\n"), "{text}");
        let hint = "hint: sysctl -w vm.zone_reclaim_mode=0 (weft doctor --apply does it)";
        assert!(text.contains(hint), "{text}");
    }

    #[test]
    fn a_planned_node_is_checked_at_its_default_port() {
        let dir = tempfile::tempdir().unwrap();
        let args = DoctorArgs {
            dir: Some(dir.path().join("node")),
            cluster_file: None,
            listen: Vec::new(),
            target_dir: vec![dir.path().to_path_buf()],
            management: vec!["m:1".into(), "m:1".into()],
            apply: false,
            json: false,
        };
        let (subjects, purpose) = subjects(&args).unwrap();
        assert_eq!(subjects.listen, [DEFAULT_LISTEN.parse().unwrap()]);
        assert_eq!(subjects.dirs, [dir.path().to_path_buf(), dir.path().join("node")]);
        assert_eq!(subjects.management, ["m:1"]);
        assert_eq!(purpose, Purpose { is_node: true, is_client: false });
    }
}
