//! Importer for the output of IOR 3.x and 4.x: a line for each repetition, and a summary with its
//! parameters.

use super::{field, results};
use crate::experiment::{Access, Caching, FileSharing, Operation};
use crate::names::io_name;
use crate::results::{Measured, Results, Run};

const MIB: f64 = 1_048_576.0;

/// Returns whether output of IOR begins here.
pub fn is_start(line: &str) -> bool {
    line.strip_prefix("IOR-").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// Parses the results of the summary, each with a run for each line.
///
/// Errors: no summary, or one that lacks a column; the error names it.
pub fn parse(text: &str) -> Result<Results, String> {
    let version = text.split(':').next().unwrap_or("IOR");
    let nodes = field(text, "nodes").and_then(|count| count.parse().ok()).unwrap_or(1);
    let (began, command) = (field(text, "Began"), field(text, "Command line"));
    let mut all = results(version, began.unwrap_or(""), command.unwrap_or(""), nodes);
    let summary = text.lines().skip_while(|line| !line.starts_with("Summary of all tests"));
    let mut summary = summary.skip(1);
    let head: Vec<&str> = summary.next().map(|line| line.split_whitespace().collect()).unwrap_or_default();
    if head.first() != Some(&"Operation") {
        return Err(format!("{version}: no summary of all tests: did it run to its end?"));
    }
    for line in summary.take_while(|line| line.starts_with("write") || line.starts_with("read")) {
        let cells = line.split_whitespace().collect();
        all.measured.push(measured(text, &Row { head: &head, cells }, nodes)?);
    }
    if all.measured.iter().any(|measured| measured.caching == Caching::Warm) {
        all.notes.push("IOR drops no caches: reads on the node that wrote may come from a cache".into());
    }
    Ok(all)
}

/// Cells of a table whose column names are single words.
struct Row<'a> {
    head: &'a [&'a str],
    cells: Vec<&'a str>,
}

impl Row<'_> {
    fn text(&self, name: &str) -> Result<&str, String> {
        let at = self.head.iter().position(|column| *column == name);
        at.and_then(|at| self.cells.get(at).copied())
            .ok_or_else(|| format!("output of IOR without column {name}"))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("output of IOR with {text:?} in column {name}"))
    }
}

fn measured(text: &str, row: &Row, nodes: u32) -> Result<Measured, String> {
    let operation = if row.text("Operation")? == "write" { Operation::Write } else { Operation::Read };
    let (tasks, per_node): (u32, u32) = (row.number("#Tasks")?, row.number("tPN")?);
    let (block, segments): (u64, u64) = (row.number("blksiz")?, row.number("segcnt")?);
    let record_bytes: u64 = row.number("xsize")?;
    let sharing = match (row.text("fPP")?, segments) {
        ("1", _) => FileSharing::OwnFiles,
        (_, 1) => FileSharing::Segments,
        _ => FileSharing::Interleaved,
    };
    let random = field(text, "ordering in a file").is_some_and(|order| order.contains("random"));
    let access = if random { Access::Random } else { Access::Sequential };
    let called = field(text, "Command line").unwrap_or("");
    // Tasks that read what a task of another node has written don't find it in their own node's
    // cache.
    let caching = if called.contains("odirect") || called.split_whitespace().any(|word| word == "-B") {
        Caching::Direct
    } else if tasks > per_node && row.text("reord")? == "1" {
        Caching::Cold
    } else {
        Caching::Warm
    };
    Ok(Measured {
        experiment: io_name(sharing, access).into(),
        operation,
        clients: nodes,
        threads: tasks,
        record_bytes,
        total_bytes: u64::from(tasks) * block * segments,
        queue_depth: 1,
        sharing: Some(sharing),
        caching,
        through: crate::Through::Mount,
        runs: runs(text, row.text("Operation")?, record_bytes)?,
        cached: None,
        generator_ns: None,
        binding: None,
    })
}

/// Returns a run for each line of the results.
fn runs(text: &str, operation: &str, record_bytes: u64) -> Result<Vec<Run>, String> {
    let mut lines = text.lines().skip_while(|line| !line.contains("bw(MiB/s)"));
    let head: Vec<&str> = lines.next().map(|line| line.split_whitespace().collect()).unwrap_or_default();
    let until_summary = lines.take_while(|line| !line.starts_with("Summary of all tests"));
    let of_operation = until_summary.filter(|line| line.split_whitespace().next() == Some(operation));
    let run = |line: &str| {
        let row = Row { head: &head, cells: line.split_whitespace().collect() };
        let (rate, seconds): (f64, f64) = (row.number("bw(MiB/s)")?, row.number("total(s)")?);
        let bytes = rate * MIB * seconds;
        Ok(Run {
            seconds,
            operations: (bytes / record_bytes.max(1) as f64).round() as u64,
            bytes: bytes.round() as u64,
            errors: 0,
            wrong_bytes: 0,
            latency: None,
            cpu_s: None,
        })
    };
    of_operation.map(run).collect()
}
