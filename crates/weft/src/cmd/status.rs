//! `weft status`: a running cluster on one screen.

use super::target_list::targets_table;
use super::watch::{self, View};
use crate::cli::WatchArgs;
use crate::control::{ClusterStatus, Counters, Notice, Request, UnservedTarget};
use crate::exit::Exit;
use crate::output::list;
use crate::size::format_size;
use types::Result;

/// Shows the status.
pub fn run(args: &WatchArgs) -> Result<Exit> {
    watch::show(args.query.json, args.watch, || {
        let status: ClusterStatus = args.query.dir.find()?.ask(Request::Status)?;
        View::new(&status, screen(&status))
    })
}

/// Formats the status screen.
pub fn screen(status: &ClusterStatus) -> String {
    let mode = if status.read_only { "read-only, " } else { "" };
    let mounted = match status.mount.as_str() {
        "" => "- (a node of a cluster; weft mount mounts it)".into(),
        mount => format!("{mount} ({mode}transport {})", status.transport),
    };
    let counters = &status.counters;
    let mut rows = vec![
        ("cluster", format!("{} ({})", status.name, status.uuid)),
        ("weft", format!("{}, process {}, up {}", status.version, status.pid, duration(status.uptime_s))),
        ("state in", status.dir.clone()),
        ("mounted at", mounted),
        ("durability", status.durability.clone()),
        (
            "capacity",
            format!(
                "{} used, {} free, of {}",
                format_size(status.used),
                format_size(status.free),
                format_size(status.capacity)
            ),
        ),
        (
            "requests",
            format!("{} from the kernel, {} to targets", counters.fuse_requests, counters.storage_requests),
        ),
        ("map epoch", status.epoch.to_string()),
        ("NUMA zone", status.numa.map_or_else(|| "-".into(), |zone| format!("bound to {zone}"))),
    ];
    // A mount, and a node without the role, have no metadata service.
    if counters.metadata_commits > 0 {
        rows.push(("metadata", metadata_text(counters)));
    }
    let head = list(&rows);
    let unserved: String = status
        .unserved
        .iter()
        .map(|UnservedTarget { path, cause, hint }| {
            format!("\nnot served: {path}: {cause}\n  hint: {hint}\n")
        })
        .collect();
    let warnings: String = status
        .warnings
        .iter()
        .map(|Notice { what, hint }| format!("\nwarning: {what}\n  hint: {hint}\n"))
        .collect();
    format!("{head}\n{}{unserved}{warnings}", targets_table(&status.targets))
}

fn metadata_text(counters: &Counters) -> String {
    format!(
        "{} commands, {} batches in {} commits, {} syncs",
        counters.metadata_commands,
        counters.metadata_batches,
        counters.metadata_commits,
        counters.metadata_syncs
    )
}

/// Formats the two largest units: `3 d 4 h`, `5 min 6 s`, `7 s`.
fn duration(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let at = units.iter().position(|(_, length)| seconds >= *length).unwrap_or(3);
    let (name, length) = units[at];
    let first = format!("{} {name}", seconds / length);
    match units.get(at + 1) {
        Some((name, next)) => format!("{first} {} {name}", seconds % length / next),
        None => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7200, "2 h 0 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
