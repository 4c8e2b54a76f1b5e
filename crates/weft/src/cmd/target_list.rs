//! `weft target list`.

use crate::cli::QueryArgs;
use crate::control::{Control, Request, TargetStatus};
use crate::output::{Align, print, print_json, table};
use crate::size::format_size;
use types::{CapacityClass, Result, TargetState};

/// Shows all targets.
pub fn run(args: &QueryArgs) -> Result<()> {
    let targets: Vec<TargetStatus> = Control::ask(&args.dir, Request::Targets)?;
    if args.json {
        return print_json(&targets);
    }
    print(&format!("{}{}", targets_table(&targets), drains(args)));
    Ok(())
}

/// A line for each target that is drained, in a cluster of several machines.
fn drains(args: &QueryArgs) -> String {
    let asked = super::manage::ask(&args.dir, wire::MgmtRequest::ListTargets);
    let Ok(wire::MgmtReply::Targets { targets }) = asked else { return String::new() };
    let line = |t: &wire::mgmt::TargetInfo| {
        let progress = t.progress.as_ref()?;
        Some(format!("target {} is drained: {}\n", t.target.id, super::target_drain::sentence(progress)))
    };
    targets.iter().filter_map(line).collect()
}

/// Targets as people read them.
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
