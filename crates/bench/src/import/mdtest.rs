//! Importer for the output of mdtest 3.x and 4.x: a summary with extremes and mean of all
//! repetitions.

use super::{field, results};
use crate::experiment::{Caching, Operation, TreeShape};
use crate::names::meta_name;
use crate::results::{Measured, Results, Run};

const ROWS: [(&str, Operation); 4] = [
    ("File creation", Operation::Create),
    ("File stat", Operation::Stat),
    ("File read", Operation::ReadFile),
    ("File removal", Operation::Remove),
];

/// Returns whether output of mdtest begins here.
pub fn is_start(line: &str) -> bool {
    line.starts_with("mdtest-") && line.contains(" was launched with ")
}

/// Parses results of files; those of directories and trees are left out.
///
/// Errors: no summary, or one with other columns.
pub fn parse(text: &str) -> Result<Results, String> {
    let first = text.lines().next().unwrap_or("");
    let version = first.split_whitespace().next().unwrap_or("mdtest");
    let (tasks, nodes) = (before(first, "total task(s)")?, before(first, "node(s)")?);
    let command = field(text, "Command line used").unwrap_or("");
    let mut all = results(version, "", command, nodes as u32);
    let files = text.lines().find(|line| line.contains(" tasks, ") && line.contains(" files"));
    let files = before(files.ok_or("output of mdtest without number of files")?, "files")?;
    let summary = text.lines().skip_while(|line| !line.starts_with("SUMMARY rate"));
    let times = summary.clone().next().and_then(|line| before(line, "iterations)").ok());
    let times = times.ok_or_else(|| format!("{version}: no summary: did it run to its end?"))?;
    // Newer versions can print each task's results before those of all together.
    let skipped = if summary.clone().any(|line| line.contains("per Iteration:")) { 3 } else { 0 };
    for line in summary {
        let Some((name, operation)) = ROWS.iter().find(|(name, _)| line.trim_start().starts_with(name))
        else {
            continue;
        };
        let rest = line.trim_start()[name.len()..].trim_start().trim_start_matches(':');
        let numbers: Vec<f64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [most, least, mean] =
            numbers.get(skipped..skipped + 3).and_then(|three| three.try_into().ok()).ok_or_else(|| {
                format!("{version}: a summary without the most, the least and the mean: {:?}", line.trim())
            })?;
        if mean > 0.0 {
            let runs = runs(times, files, Rates { most, least, mean });
            all.measured.push(measured(*operation, command, (tasks, nodes, files), runs));
        }
    }
    if times > 3 {
        all.notes.push("mdtest tells the most, the least and the mean: what lies between is told as the rest of the mean".into());
    }
    if all.measured.iter().any(|measured| measured.caching == Caching::Warm) {
        all.notes.push("mdtest without -N looks at its own files: caches may have answered".into());
    }
    Ok(all)
}

/// Returns the number before a word: 2 in `2 tasks`.
fn before(line: &str, word: &str) -> Result<u64, String> {
    let at = line.find(word).ok_or_else(|| format!("output of mdtest without {word:?}"))?;
    let number =
        line[..at].split_whitespace().next_back().and_then(|number| number.trim_matches('(').parse().ok());
    number.ok_or_else(|| format!("output of mdtest without a number before {word:?}"))
}

struct Rates {
    most: f64,
    least: f64,
    mean: f64,
}

/// Returns runs with the printed extremes and mean: exact up to three, with equal ones in between
/// for more.
fn runs(times: u64, files: u64, rates: Rates) -> Vec<Run> {
    let run = |rate: f64| Run {
        seconds: files as f64 / rate,
        operations: files,
        bytes: 0,
        errors: 0,
        wrong_bytes: 0,
        latency: None,
        cpu_s: None,
    };
    let between = times.saturating_sub(2);
    let rest = (rates.mean * times as f64 - rates.most - rates.least) / between.max(1) as f64;
    let rest = rest.clamp(rates.least, rates.most);
    let ends = if times < 2 { vec![rates.mean] } else { vec![rates.least, rates.most] };
    ends.into_iter().chain(std::iter::repeat_n(rest, between as usize)).map(run).collect()
}

fn measured(operation: Operation, command: &str, counts: (u64, u64, u64), runs: Vec<Run>) -> Measured {
    let (tasks, nodes, files) = counts;
    let words: Vec<&str> = command.split_whitespace().map(|word| word.trim_matches(['"', '\''])).collect();
    let has = |option: &str| words.iter().any(|word| word.starts_with(option));
    let value = |option: &str| {
        words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1)?.parse().ok())
    };
    let file_bytes: u64 = value("-w").unwrap_or(0);
    let shape = match has("-u") {
        true => TreeShape::OwnDirectories { directories: 1 },
        false => TreeShape::SharedDirectory,
    };
    Measured {
        experiment: meta_name(shape).into(),
        operation,
        clients: nodes as u32,
        threads: tasks as u32,
        record_bytes: file_bytes,
        total_bytes: files * file_bytes,
        queue_depth: 1,
        sharing: None,
        caching: if has("-N") { Caching::Cold } else { Caching::Warm },
        through: crate::Through::Mount,
        runs,
        cached: None,
        generator_ns: None,
        binding: None,
    }
}
