//! Tests of `weft plan` from the command line to its output.

use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;

/// Writes the description from the document to a file.
fn example() -> (tempfile::TempDir, String) {
    let document = include_str!("../../../../../docs/planning.md");
    let text = document.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("site.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_string();
    (dir, path)
}

fn parse(words: &[&str]) -> PlanArgs {
    let line = ["weft", "plan"].iter().chain(words);
    match Cli::try_parse_from(line).map(|cli| cli.command) {
        Ok(Command::Plan(args)) => args,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn planned(words: &[&str]) -> Result<Answer> {
    answer(&parse(words))
}

const SIX: [&str; 8] =
    ["--servers", "6", "--drives", "12", "--drive", "nvme-gen4-7.68tb", "--link", "100gbe"];

#[test]
fn the_document_shows_what_is_printed() {
    let document = include_str!("../../../../../docs/planning.md");
    let (_dir, path) = example();
    for words in [vec![&*path], vec![&*path, "--target", "100 GB/s read", "--target", "1 PB usable"]] {
        let screen = text::screen(&planned(&words).unwrap());
        assert!(document.contains(&screen), "put this into docs/planning.md:\n{screen}");
    }
}

#[test]
fn options_describe_and_change() {
    let whole = planned(&SIX).unwrap().plan.unwrap();
    assert_eq!((whole.servers, whole.drives, whole.targets), (6, 72, 72));
    let (_dir, path) = example();
    let changed = planned(&[&path, "--servers", "12", "--scheme", "mirror:3", "--spare", "20"]).unwrap();
    let plan = changed.plan.unwrap();
    assert_eq!((plan.servers, plan.scheme.to_string()), (12, "mirror:3".into()));
    assert_eq!(changed.description.pool.spare_percent, 20.0);
}

#[test]
fn json_and_csv_have_what_the_screen_has() {
    let (_dir, path) = example();
    let answer = planned(&[&path]).unwrap();
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(json["plan"]["read"]["binds"], "server links");
    assert!(json["plan"]["capacity"]["usable_bytes"].as_f64().unwrap() > 1e14);
    let csv = rows::csv(&answer);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "quantity,value,unit,binds");
    let read = lines.iter().find(|line| line.starts_with("\"sequential read\",")).unwrap();
    assert!(read.ends_with(",GB/s,server links"), "{read}");
    // Only the name is quoted; the other cells have no commas.
    assert!(
        lines[1..].iter().all(|line| line.rsplit('"').next().unwrap().matches(',').count() == 3),
        "{csv}"
    );
}

#[test]
fn the_page_has_every_table_and_figure_and_needs_nothing_else() {
    let (_dir, path) = example();
    let page = page::page(&planned(&[&path]).unwrap()).unwrap();
    for title in [
        "Large transfers",
        "Random requests",
        "Capacity",
        "Rebuild",
        "Data loss",
        "What it gives",
        "Planned from",
    ] {
        assert!(page.contains(title), "{title}");
    }
    assert_eq!(page.matches("<svg").count(), 5);
    assert_eq!(page.matches("<table").count(), 2 + 5);
    let links: Vec<&str> =
        page.match_indices("://").map(|(at, _)| &page[at.saturating_sub(20)..at + 3]).collect();
    // The namespace of SVG is only a name, and isn't fetched.
    assert!(links.iter().all(|link| link.ends_with("xmlns=\"http://")), "{links:?}");
    assert!(!page.contains("<script"));
}

#[test]
fn a_page_of_what_never_is_lost_or_rebuilt_leaves_those_figures_out() {
    let page = page::page(&planned(&SIX).unwrap()).unwrap();
    assert!(!page.contains("<b>Rebuild.</b>") && page.contains("<b>Data loss.</b>"));
}

#[test]
fn what_cannot_be_is_refused_with_object_and_remedy() {
    let (dir, path) = example();
    let broken = dir.path().join("broken.toml");
    std::fs::write(&broken, "[[server]]\ncount = \"six\"\n").unwrap();
    let unknown = dir.path().join("unknown.toml");
    std::fs::write(&unknown, "[pool]\nschema = \"single\"\n").unwrap();
    let none = dir.path().join("none.toml");
    std::fs::write(&none, "name = \"nothing\"\n").unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[&path, "--drive", "floppy"], "\"floppy\""),
        (&[&path, "--link", "string"], "\"string\""),
        (&[&path, "--servers", "0"], "count is 0"),
        (&[&path, "--drives", "0"], "drives is 0"),
        (&[&path, "--servers", "2", "--scheme", "mirror:3"], "3 members, and there are 2"),
        (&[&path, "--scheme", "ec:8+3"], "11 members"),
        (&[&path, "--spare", "100"], "spare_percent is 100"),
        (&[&path, "--spare", "NaN"], "spare_percent is NaN"),
        (&[&path, "--clients", "1", "--target", "1 TB/s read"], "client links"),
        (&["--servers", "3"], "--drives"),
        (&[broken.to_str().unwrap()], "broken.toml"),
        (&[unknown.to_str().unwrap()], "schema"),
        (&[none.to_str().unwrap()], "no servers"),
        (&["/nowhere/site.toml"], "/nowhere/site.toml: no such file"),
    ];
    for (words, part) in cases {
        let error = planned(words).err().unwrap_or_else(|| panic!("{words:?}"));
        assert!(error.message.contains(part), "{words:?}: {error}");
        assert!(!error.hint.is_empty() || part.contains("no such file"), "{words:?}: {error}");
    }
}

#[test]
fn a_sold_file_system_is_planned_without_servers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sold.toml");
    std::fs::write(&path, "[provision]\ndeployment = \"persistent-50\"\ntib = 2.4\n").unwrap();
    let answer = planned(&[path.to_str().unwrap()]).unwrap();
    let screen = text::screen(&answer);
    assert!(
        answer.plan.is_none() && screen.contains("drives, promised") && screen.contains("117 MB/s"),
        "{screen}"
    );
    page::page(&answer).unwrap();
}

#[test]
fn numbers_have_three_digits() {
    for (value, text) in [
        (0.0, "0"),
        (0.00123, "0.00123"),
        (1.0, "1"),
        (12.345, "12.3"),
        (117.2, "117"),
        (68700.0, "68700"),
        (1e-9, "1.0e-9"),
        (f64::INFINITY, "never"),
    ] {
        assert_eq!(rows::number(value), text);
    }
}
