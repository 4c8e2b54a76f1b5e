//! `weft bench compare`: compares two results.

use super::read::read;
use crate::cli::CompareArgs;
use crate::output::{Align, os_error, print, print_json, table};
use crate::size::format_size;
use bench::compare::{Comparison, Key, Pair, compare};
use bench::figure_parts::{Unit, display_name_with_path, figure, in_bytes, series};
use bench::profiles::XAxis;
use bench::text::digits;
use bench::{Measured, Results};
use report::{Block, Page, Table};
use serde_json::json;
use types::Result;

/// Runs the command.
pub fn run(args: &CompareArgs) -> Result<()> {
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    let comparison = compare(&first, &second);
    if let Some(out) = &args.html {
        let html = page(&first, &second, &comparison)?;
        std::fs::write(out, html).map_err(|e| os_error(out.display(), &e))?;
    }
    if args.json {
        return print_json(
            &json!({ "first": about(&first), "second": about(&second), "comparison": comparison }),
        );
    }
    print(&screen(&first, &second, &comparison));
    Ok(())
}

fn about(results: &Results) -> serde_json::Value {
    json!({ "system": results.system, "began": results.began, "command": results.command, "notes": results.notes })
}

/// Formats a rate in a suitable unit.
fn rate(pair: &Pair, rate: f64) -> String {
    match pair.in_bytes {
        true => format!("{} MB/s", digits(rate / 1e6)),
        false => format!("{} op/s", digits(rate)),
    }
}

fn verdict(pair: &Pair) -> String {
    let spans = if pair.overlap { "spans overlap" } else { "" };
    let all =
        std::iter::once(spans).filter(|text| !text.is_empty()).chain(pair.differs.iter().map(String::as_str));
    all.collect::<Vec<_>>().join("; ")
}

fn cells(pair: &Pair) -> [String; 9] {
    let key = &pair.key;
    [
        key.experiment.clone(),
        display_name_with_path(key.operation, key.through),
        key.threads.to_string(),
        format_size(key.record_bytes),
        key.queue_depth.to_string(),
        rate(pair, pair.first.0),
        rate(pair, pair.second.0),
        format!("{:.3}", pair.ratio),
        verdict(pair),
    ]
}

const COLUMNS: [(&str, Align); 9] = [
    ("experiment", Align::Left),
    ("operation", Align::Left),
    ("threads", Align::Right),
    ("record", Align::Right),
    ("depth", Align::Right),
    ("first", Align::Right),
    ("second", Align::Right),
    ("ratio", Align::Right),
    ("note", Align::Left),
];

fn screen(first: &Results, second: &Results, comparison: &Comparison) -> String {
    let mut text = format!("first   {}\nsecond  {}\n\n", title(first), title(second));
    if comparison.pairs.is_empty() {
        text += "no common measurements\n";
    } else {
        let rows: Vec<[String; 9]> = comparison.pairs.iter().map(cells).collect();
        text += &table(COLUMNS, &rows);
    }
    for (which, keys) in [("first", &comparison.only_first), ("second", &comparison.only_second)] {
        for key in keys {
            text += &format!("only in the {which}: {}\n", line(key));
        }
    }
    text
}

fn title(results: &Results) -> String {
    let began = if results.began.is_empty() { String::new() } else { format!(", {}", results.began) };
    format!("{}{began}", results.system)
}

fn line(key: &Key) -> String {
    let record = format_size(key.record_bytes);
    format!(
        "{}, {}, {} threads, {record}, depth {}",
        key.experiment,
        display_name_with_path(key.operation, key.through),
        key.threads,
        key.queue_depth
    )
}

fn page(first: &Results, second: &Results, comparison: &Comparison) -> Result<String> {
    let mut blocks = Vec::new();
    for (which, results) in [("First", first), ("Second", second)] {
        blocks.push(Block::Text(format!("{which}: {}.", title(results))));
        blocks.extend(results.notes.iter().map(|note| Block::Text(format!("{which}: {note}."))));
    }
    let names = COLUMNS.map(|(name, _)| name);
    let pairs = comparison.pairs.iter().fold(Table::of(&names), |table, pair| table.row(cells(pair)));
    blocks.push(Block::Table(Table { caption: "Medians; the ratio is second to first".into(), ..pairs }));
    blocks.extend(figures(first, second));
    for (which, keys) in [("first", &comparison.only_first), ("second", &comparison.only_second)] {
        if !keys.is_empty() {
            let rows = keys.iter().fold(Table::of(&["figure"]), |table, key| table.row([line(key)]));
            blocks.push(Block::Table(Table { caption: format!("Only in the {which}"), ..rows }));
        }
    }
    Page { title: format!("weft bench compare: {} and {}", first.system, second.system), blocks }.html()
}

/// Returns a figure for each experiment and record size, with the lines of both results.
fn figures(first: &Results, second: &Results) -> Vec<Block> {
    let mut kinds: Vec<(&str, u64, bool)> = Vec::new();
    let all: Vec<&Measured> = first.measured.iter().chain(&second.measured).collect();
    let kind = |of: &Measured| (of.record_bytes, in_bytes(&[of]));
    for measured in &all {
        let (record, bytes) = kind(measured);
        if !kinds.contains(&(measured.experiment.as_str(), record, bytes)) {
            kinds.push((&measured.experiment, record, bytes));
        }
    }
    let block = |(experiment, record, bytes): (&str, u64, bool)| {
        let is_of = |of: &&Measured| of.experiment == experiment && kind(of) == (record, bytes);
        let here: Vec<&Measured> = all.iter().copied().filter(is_of).collect();
        let unit = Unit::of(bytes, here.iter().copied());
        let depths = here.iter().any(|of| of.queue_depth != here[0].queue_depth);
        let across = if depths { XAxis::QueueDepth } else { XAxis::Threads };
        let mut operations: Vec<_> = here.iter().map(|of| (of.operation, of.through)).collect();
        operations.sort_unstable();
        operations.dedup();
        let mut lines = Vec::new();
        for (operation, through) in operations {
            for (which, results) in [("first", first), ("second", second)] {
                let of = results
                    .measured
                    .iter()
                    .filter(|of| is_of(of) && (of.operation, of.through) == (operation, through));
                lines.extend(series(
                    format!("{}, {which}", display_name_with_path(operation, through)),
                    across,
                    unit,
                    of,
                ));
            }
        }
        let title = format!("{experiment}, {}", format_size(record));
        figure(&title, "Medians, with minimum and maximum.", across, unit, lines).map(Block::Figure)
    };
    kinds.into_iter().filter_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Results {
        bench::import::any(text).unwrap()
    }

    fn both() -> (Results, Results) {
        (
            of(include_str!("../../../../bench/tests/fixtures/ior-3.3.0-nn.txt")),
            of(include_str!("../../../../bench/tests/fixtures/ior-4.0.0-nn.txt")),
        )
    }

    #[test]
    fn two_programs_meet_on_a_screen_and_a_page() {
        let (first, second) = both();
        let comparison = compare(&first, &second);
        let text = screen(&first, &second, &comparison);
        assert!(
            text.contains("IOR-3.3.0") && text.contains("0.919") && text.contains("spans overlap"),
            "{text}"
        );
        let html = page(&first, &second, &comparison).unwrap();
        assert_eq!(html.matches("<svg").count(), 1, "one experiment of one record");
        for part in ["read, first", "write, second", "sequential N-N, 1 MiB"] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn what_is_in_one_only_is_listed() {
        let (first, mut second) = both();
        second.measured[0].threads = 77;
        let text = screen(&first, &second, &compare(&first, &second));
        assert!(text.contains("only in the first: sequential N-N, write, 2 threads"), "{text}");
        assert!(text.contains("only in the second: sequential N-N, write, 77 threads"), "{text}");
    }

    #[test]
    fn files_of_metadata_are_told_in_operations() {
        let files = of(include_str!("../../../../bench/tests/fixtures/mdtest-4.0.0.txt"));
        let text = screen(&files, &files, &compare(&files, &files));
        assert!(text.contains("op/s") && !text.contains("MB/s") && text.contains("1.000"), "{text}");
        assert!(page(&files, &files, &compare(&files, &files)).unwrap().contains("<svg"));
    }
}
