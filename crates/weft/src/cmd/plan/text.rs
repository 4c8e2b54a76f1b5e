//! Formats a plan for the screen.

use super::Answer;
use super::rows::{loads, number, performance_rows};
use crate::output::{Align, list, table};
use layout::plan::{DEPLOYMENTS, DRIVES, LINKS, Plan, RebuildPlace};

const TIB: f64 = 1_099_511_627_776.0;

/// Formats a whole answer.
pub fn screen(answer: &Answer) -> String {
    let mut text = String::new();
    if !answer.targets.is_empty() {
        text += &goals(answer);
    }
    if let Some(plan) = &answer.plan {
        text += &of_plan(plan);
    }
    if let Some(simulated) = &answer.simulated {
        text += &simulated.text();
    }
    if let Some(expected) = &answer.promised {
        let rows: Vec<_> = performance_rows(expected)
            .iter()
            .map(|row| (row.name, format!("{} {}", number(row.value), row.unit)))
            .collect();
        text += &list(&rows);
    }
    text
}

fn goals(answer: &Answer) -> String {
    let targets: Vec<String> = answer.targets.iter().map(|target| target.to_string()).collect();
    let Some(server) = answer.description.server.last() else { return String::new() };
    let name = if server.name.is_empty() { "servers" } else { &server.name };
    let mut text =
        format!("for {}: {} {name} with {} drives each\n", targets.join(", "), server.count, server.drives);
    if let Some(decides) = answer.decides {
        text += &format!("one server less misses {decides}\n");
    }
    text + "\n"
}

fn of_plan(plan: &Plan) -> String {
    let name = if plan.name.is_empty() { String::new() } else { format!("{}: ", plan.name) };
    let head = format!(
        "{name}{} servers, {} drives, {} targets, {}; {} rack units\n\n",
        plan.servers, plan.drives, plan.targets, plan.scheme, plan.rack_units
    );
    let loads = loads(plan).map(|(name, rate, scale, unit)| {
        let next = rate.limits.get(1).map(|next| format!("{} {}", next.resource, number(next.per_s / scale)));
        let value = format!("{} {unit}", number(rate.per_s / scale));
        [name.to_string(), value, rate.binds.to_string(), next.unwrap_or_default()]
    });
    let heading =
        [("load", Align::Left), ("rate", Align::Right), ("binds", Align::Left), ("next", Align::Left)];
    let notes: String = plan.notes.iter().map(|note| format!("note: {note}\n")).collect();
    let gap = if notes.is_empty() { "" } else { "\n" };
    format!("{head}{}\n{}{gap}{notes}", list(&safety(plan)), table(heading, &loads))
}

fn safety(plan: &Plan) -> Vec<(&'static str, String)> {
    let capacity = &plan.capacity;
    let tb = |bytes: f64| format!("{} TB", number(bytes / 1e12));
    let mut rows = vec![
        (
            "usable",
            format!(
                "{} ({} TiB) of {} raw",
                tb(capacity.usable_bytes),
                number(capacity.usable_bytes / TIB),
                tb(capacity.raw_bytes)
            ),
        ),
        (
            "spare",
            format!(
                "{}; a server's content takes {}",
                tb(capacity.spare_bytes),
                tb(capacity.spare_for_a_server_bytes)
            ),
        ),
        ("metadata", format!("{} needed", tb(capacity.metadata_needed_bytes))),
    ];
    if capacity.metadata_given_bytes > 0.0 {
        rows[2].1 += &format!(", {} described", tb(capacity.metadata_given_bytes));
    }
    let rebuild = match &plan.rebuild {
        None => "none: no data has a second replica".into(),
        Some(rebuild) => format!(
            "a target's {} are restored {} h after its loss, {}; limited by: {}",
            tb(rebuild.bytes),
            number(rebuild.seconds / 3600.0),
            match rebuild.place {
                RebuildPlace::Spare => "in spare space",
                RebuildPlace::Replacement => "on replaced drives",
            },
            match rebuild.binds {
                "pace" => "rebuild rate limit",
                resource => resource,
            }
        ),
    };
    rows.push(("rebuild", rebuild));
    let chain = &plan.reliability;
    rows.push((
        "data loss",
        format!(
            "probability {} a year; {} targets fail in a year",
            number(chain.loss_per_year),
            number(chain.targets * chain.failures_per_year)
        ),
    ));
    if let Some([read, write, mixed]) = plan.latency_s {
        let us = |seconds: f64| number(seconds * 1e6);
        rows.push((
            "latency",
            format!("random read {} us, write {} us, 70/30 {} us", us(read), us(write), us(mixed)),
        ));
    }
    rows
}

/// Formats the kinds of drives and links.
pub fn kinds() -> String {
    let known = |iops: Option<f64>| iops.map_or("unknown".into(), number);
    let drives: Vec<_> = DRIVES
        .iter()
        .map(|(name, drive)| {
            [
                name.to_string(),
                number(drive.tb),
                number(drive.read_gb_s),
                number(drive.write_gb_s),
                known(drive.read_iops),
                known(drive.write_iops),
                format!("{} %", number(drive.afr * 100.0)),
            ]
        })
        .collect();
    let heading = [
        ("drive", Align::Left),
        ("TB", Align::Right),
        ("read GB/s", Align::Right),
        ("write GB/s", Align::Right),
        ("read IOPS", Align::Right),
        ("write IOPS", Align::Right),
        ("fail a year", Align::Right),
    ];
    let links: Vec<_> = LINKS.iter().map(|(name, link)| [name.to_string(), number(link.gb_s)]).collect();
    let links = table([("link", Align::Left), ("GB/s", Align::Right)], &links);
    let deployments: Vec<_> = DEPLOYMENTS.iter().map(|(name, _)| *name).collect();
    format!("{}\n{links}\ndeployments ([provision]): {}\n", table(heading, &drives), deployments.join(", "))
}
