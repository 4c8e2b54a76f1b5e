//! `weft du`: the space that trees of files use.

use super::{Output, Run, count, shown};
use crate::cli::DuArgs;
use crate::output::print_json;
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};
use tree::{Usage, UsageLine, UsageOptions, UsageScan};
use types::Result;

/// Measures and prints.
pub fn run(args: &DuArgs) -> Result<()> {
    let run = Run::start("measuring", args.json)?;
    let out = Output::new(&run.stop);
    let listed = Mutex::new(Vec::new());
    let max_depth = if args.summarize { 0 } else { args.max_depth.unwrap_or(usize::MAX) };
    let show = |line: UsageLine| {
        if line.depth > max_depth {
            return;
        }
        if args.json {
            listed.lock().unwrap_or_else(PoisonError::into_inner).push(document(&line));
        } else {
            out.line(&[amount(args, line.usage).as_bytes(), b"\t", &out.path(&line.path)]);
        }
    };
    let options = UsageOptions {
        one_file_system: args.one_file_system,
        count_links: args.count_links,
        files: args.all,
    };
    let mut total = Usage::default();
    let report = run.reporter();
    let scan = UsageScan::new(options, args.paths.len(), &show, run.job(&report));
    run.work(
        "measuring",
        || scan.files(),
        || {
            let measured = args.paths.iter().filter_map(|path| scan.measure(path));
            total = measured.fold(total, Usage::plus);
        },
    );
    if args.json {
        let listed = std::mem::take(&mut *listed.lock().unwrap_or_else(PoisonError::into_inner));
        print_json(&run.document(json!({
            "lines": listed, "allocated_bytes": total.allocated, "apparent_bytes": total.apparent, "files": total.files,
        })))?;
    } else if args.total && !run.is_interrupted() {
        out.line(&[amount(args, total).as_bytes(), b"\ttotal"]);
    }
    out.end()?;
    let done = format!("{} have been counted", count(scan.files(), "file"));
    run.outcome(
        "read",
        &done,
        "directories that were printed are complete, except for what could not be read",
    )
}

fn document(line: &UsageLine) -> Value {
    json!({
        "path": shown(&line.path), "depth": line.depth, "allocated_bytes": line.usage.allocated,
        "apparent_bytes": line.usage.apparent, "files": line.usage.files,
    })
}

/// Formats the requested number in the requested unit.
fn amount(args: &DuArgs, usage: Usage) -> String {
    let bytes = if args.bytes || args.apparent_size { usage.apparent } else { usage.allocated };
    match (args.bytes, args.human_readable) {
        (_, true) => human_size(bytes),
        (true, false) => bytes.to_string(),
        (false, false) => bytes.div_ceil(1024).to_string(),
    }
}

/// Formats a size as `du -h` does: rounded up, with one decimal below ten.
fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (bytes, mut unit, mut power) = (u128::from(bytes), 1u128, 0);
    while bytes >= unit * 1024 {
        unit *= 1024;
        power += 1;
    }
    let (tenths, whole) = ((bytes * 10).div_ceil(unit), bytes.div_ceil(unit));
    match (power, tenths, whole) {
        (0, ..) => bytes.to_string(),
        (_, ..100, _) => format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[power]),
        (..6, _, 1024) => format!("1.0{}", UNITS[power + 1]),
        _ => format!("{whole}{}", UNITS[power]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_du() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (9 * 1024 + 922, "10K"),
            (10 << 10, "10K"),
            ((1 << 20) - 1, "1.0M"),
            (3 << 40, "3.0T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }
}
