//! `weft target list`.

use super::watch::{self, View};
use crate::cli::{QueryArgs, WatchArgs};
use crate::control::{Request, TargetStatus};
use crate::exit::Exit;
use crate::output::{Align, table};
use crate::size::format_size;
use serde::Serialize;
use std::collections::BTreeMap;
use types::{CapacityClass, Result, TargetId, TargetState};
use wire::mgmt::DrainProgress;

/// Shows all targets.
pub fn run(args: &WatchArgs) -> Result<Exit> {
    watch::show(args.query.json, args.watch, || view(&args.query))
}

fn view(query: &QueryArgs) -> Result<View> {
    let targets: Vec<TargetStatus> = query.dir.find()?.ask(Request::Targets)?;
    let drains = drains(query);
    let to_output = |target| TargetOutput { target, drain: drains.get(&target.id) };
    let line = |(target, progress)| {
        format!("target {target} is being drained: {}\n", super::target_drain::progress_text(progress))
    };
    let text = format!("{}{}", targets_table(&targets), drains.iter().map(line).collect::<String>());
    View::new(&targets.iter().map(to_output).collect::<Vec<_>>(), text)
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
            t.operations.map_or_else(|| "-".into(), |count| count.to_string()),
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
