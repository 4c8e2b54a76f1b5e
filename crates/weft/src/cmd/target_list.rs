//! `weft target list`.

use crate::cli::QueryArgs;
use crate::control::{Control, Request, TargetStatus};
use crate::output::{Align, print, print_json, table};
use crate::size::format_size;
use serde::Serialize;
use std::collections::BTreeMap;
use types::{CapacityClass, Result, TargetId, TargetState};
use wire::mgmt::DrainProgress;

/// Shows all targets.
pub fn run(args: &QueryArgs) -> Result<()> {
    let targets: Vec<TargetStatus> = Control::ask(&args.dir, Request::Targets)?;
    let drains = drains(args);
    if args.json {
        let to_output = |target| TargetOutput { target, drain: drains.get(&target.id) };
        return print_json(&targets.iter().map(to_output).collect::<Vec<_>>());
    }
    let line = |(target, progress)| {
        format!("target {target} is being drained: {}\n", super::target_drain::progress_text(progress))
    };
    print(&format!("{}{}", targets_table(&targets), drains.iter().map(line).collect::<String>()));
    Ok(())
}

/// A target in the JSON output.
#[derive(Serialize)]
struct TargetOutput<'a> {
    #[serde(flatten)]
    target: &'a TargetStatus,
    /// Progress, while the target is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<&'a DrainProgress>,
}

/// Returns the progress of each draining target, in a cluster of several machines.
fn drains(args: &QueryArgs) -> BTreeMap<TargetId, DrainProgress> {
    let asked = super::manage::ask(&args.dir, wire::MgmtRequest::ListTargets);
    let Ok(wire::MgmtReply::Targets { targets }) = asked else { return BTreeMap::new() };
    targets.into_iter().filter_map(|info| Some((info.target.id, info.progress?))).collect()
}

/// Formats targets as a table.
pub fn targets_table(targets: &[TargetStatus]) -> String {
    let row = |t: &TargetStatus| {
        [
            t.id.to_string(),
            t.pool.clone(),
            state_name(t.state).into(),
            class_name(t.class).into(),
            format_size(t.used),
            format_size(t.free),
            t.operations.to_string(),
            t.numa.map_or_else(|| "-".into(), |zone| zone.to_string()),
            t.path.clone(),
        ]
    };
    let heading = [
        ("TARGET", Align::Right),
        ("POOL", Align::Left),
        ("STATE", Align::Left),
        ("CAPACITY", Align::Left),
        ("USED", Align::Right),
        ("FREE", Align::Right),
        ("OPS", Align::Right),
        ("NUMA", Align::Right),
        ("PATH", Align::Left),
    ];
    table(heading, &targets.iter().map(row).collect::<Vec<_>>())
}

pub fn state_name(state: TargetState) -> &'static str {
    match state {
        TargetState::Online => "online",
        TargetState::ProbablyOffline => "probably offline",
        TargetState::Offline => "offline",
    }
}

pub fn class_name(class: CapacityClass) -> &'static str {
    match class {
        CapacityClass::Normal => "normal",
        CapacityClass::Low => "low",
        CapacityClass::Emergency => "emergency",
    }
}
