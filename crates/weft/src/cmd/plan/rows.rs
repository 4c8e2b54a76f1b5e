//! Quantities of a plan with units, for the table, the CSV and the page.

use super::Answer;
use layout::plan::{ExpectedPerformance, Plan, PlannedRate};

/// One quantity.
pub struct Row {
    /// Name of the quantity.
    pub name: &'static str,
    /// Value, in `unit`.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// The limiting resource.
    pub binds: String,
}

fn row(name: &'static str, value: f64, unit: &'static str) -> Row {
    Row { name, value, unit, binds: String::new() }
}

fn rate(name: &'static str, rate: &PlannedRate, scale: f64, unit: &'static str) -> Row {
    Row { name, value: rate.per_s / scale, unit, binds: rate.binds.to_string() }
}

/// Returns the loads with their rates, the factor to the unit, and the unit.
pub fn loads(plan: &Plan) -> [(&'static str, &PlannedRate, f64, &'static str); 7] {
    [
        ("sequential read", &plan.read, 1e9, "GB/s"),
        ("sequential write", &plan.write, 1e9, "GB/s"),
        ("one shared file, read", &plan.shared_read, 1e9, "GB/s"),
        ("one shared file, write", &plan.shared_write, 1e9, "GB/s"),
        ("random read, 4 KiB", &plan.random_read, 1e3, "k IOPS"),
        ("random write, 4 KiB", &plan.random_write, 1e3, "k IOPS"),
        ("random 70/30, 4 KiB", &plan.mixed, 1e3, "k IOPS"),
    ]
}

/// Returns all quantities of an answer.
pub fn rows(answer: &Answer) -> Vec<Row> {
    let planned = answer.plan.iter().flat_map(of_plan);
    planned.chain(answer.promised.iter().flat_map(performance_rows)).collect()
}

fn of_plan(plan: &Plan) -> Vec<Row> {
    let capacity = &plan.capacity;
    let mut rows = vec![
        row("servers", f64::from(plan.servers), ""),
        row("drives", plan.drives as f64, ""),
        row("targets", plan.targets as f64, ""),
        row("rack units", plan.rack_units as f64, "U"),
        row("raw capacity", capacity.raw_bytes / 1e12, "TB"),
        row("usable capacity", capacity.usable_bytes / 1e12, "TB"),
        row("spare", capacity.spare_bytes / 1e12, "TB"),
        row("spare for the loss of a server", capacity.spare_for_a_server_bytes / 1e12, "TB"),
        row("metadata capacity needed", capacity.metadata_needed_bytes / 1e12, "TB"),
        row("metadata capacity described", capacity.metadata_given_bytes / 1e12, "TB"),
    ];
    rows.extend(loads(plan).map(|(name, of, scale, unit)| rate(name, of, scale, unit)));
    if let Some(per_s) = plan.thread_bytes_per_s {
        rows.push(row("one application with one file", per_s / 1e9, "GB/s"));
    }
    let latencies = ["latency of a random read", "latency of a random write", "latency of a 70/30 request"];
    for (name, seconds) in latencies.into_iter().zip(plan.latency_s.into_iter().flatten()) {
        rows.push(row(name, seconds * 1e6, "us"));
    }
    if let Some(rebuild) = &plan.rebuild {
        rows.push(row("content of a lost target", rebuild.bytes / 1e12, "TB"));
        rows.push(row("until it is restored", rebuild.seconds / 3600.0, "h"));
        rows.push(row("of that, until the rebuild begins", rebuild.waits_seconds / 3600.0, "h"));
    }
    rows.push(row(
        "failures of targets",
        plan.reliability.failures_per_year * plan.reliability.targets,
        "a year",
    ));
    rows.push(row("mean time to data loss", plan.reliability.mean_years_to_loss, "years"));
    rows.push(row("probability of data loss", plan.reliability.loss_per_year, "a year"));
    rows
}

pub fn performance_rows(expected: &ExpectedPerformance) -> Vec<Row> {
    let of = &expected.promised;
    vec![
        row("network, promised", of.network_mb_s, "MB/s"),
        row("network with credits, promised", of.network_burst_mb_s, "MB/s"),
        row("cache, promised", of.cache_gib, "GiB"),
        row("drives, promised", of.drives_mb_s, "MB/s"),
        row("drives with credits, promised", of.drives_burst_mb_s, "MB/s"),
        row("drives, expected", expected.drives_bytes_per_s / 1e6, "MB/s"),
        row("drives with credits, expected", expected.drives_burst_bytes_per_s / 1e6, "MB/s"),
        row("cached reads, expected", expected.cached_bytes_per_s / 1e6, "MB/s"),
        row("cached reads with credits, expected", expected.cached_burst_bytes_per_s / 1e6, "MB/s"),
    ]
}

/// Returns lines of `quantity,value,unit,binds`. The quoted names may contain commas, other cells
/// don't.
pub fn csv(answer: &Answer) -> String {
    let line = |row: Row| format!("\"{}\",{},{},{}\n", row.name, row.value, row.unit, row.binds);
    let mut text = String::from("quantity,value,unit,binds\n");
    text.extend(rows(answer).into_iter().map(line));
    text
}

/// Formats three significant digits, without an exponent if none is needed.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "never".into() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-3..7).contains(&magnitude) {
        return format!("{value:.1e}");
    }
    let decimals = (2 - magnitude).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}
