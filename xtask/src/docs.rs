//! Generates reference pages from the program's own output.

use crate::{build, process};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Deadline of one `weft help`.
const HELP_DEADLINE: Duration = Duration::from_secs(20);

/// Topics of `weft help` that aren't commands, with their headings.
const TOPICS: [(&str, &str); 2] = [("Exit status", "exit-status"), ("The cluster of a command", "dir")];

/// Commands that the list of `weft` leaves out so that it fits a screen.
const UNLISTED: [&[&str]; 7] = [&["rm"], &["cp"], &["du"], &["find"], &["demo"], &["log", "level"], &["net"]];

/// Maximum nesting of commands: `weft group resync set` is three levels below `weft`.
const MAX_DEPTH: usize = 3;

/// Writes docs/reference/cli.md from the help texts.
pub fn run() -> Result<(), String> {
    let weft = build::weft(false)?;
    let mut page = String::from(
        "# Command line\n\nGenerated from `weft help` by `make docs`; don't edit by hand.\n\
         `weft help COMMAND` and `weft COMMAND --help` print the same text.\n",
    );
    for (heading, name) in TOPICS {
        let text = process::run_ok(Command::new(&weft).args(["help", name]), HELP_DEADLINE)?;
        write!(page, "\n## {heading}\n\n```text\n{}\n```\n", text.stdout.trim_end())
            .expect("a String takes any text");
    }
    describe(&weft, &[], &mut page)?;
    for words in UNLISTED {
        let words: Vec<String> = words.iter().copied().map(String::from).collect();
        describe(&weft, &words, &mut page)?;
    }
    let path = build::root().join("docs/reference/cli.md");
    fs::create_dir_all(path.parent().expect("the page lies in a folder"))
        .and_then(|()| fs::write(&path, page))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("wrote docs/reference/cli.md");
    Ok(())
}

/// Appends the help of a command and of its subcommands.
fn describe(weft: &Path, words: &[String], page: &mut String) -> Result<(), String> {
    let help =
        process::run_ok(Command::new(weft).args(words).arg("--help").env("COLUMNS", "100"), HELP_DEADLINE)?;
    let title = std::iter::once("weft").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let text = help.stdout.trim_end();
    write!(page, "\n## `{title}`\n\n```text\n{text}\n```\n").expect("a String takes any text");
    if words.len() == MAX_DEPTH {
        return Ok(());
    }
    for name in subcommands(text) {
        let below: Vec<String> = words.iter().cloned().chain([name]).collect();
        describe(weft, &below, page)?;
    }
    Ok(())
}

/// Returns the names under `Commands:` in a help text; in that of `weft` itself the list follows
/// the usage.
fn subcommands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| !line.trim().ends_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_a_help_text() {
        let help = "Does things\n\nUsage: weft <COMMAND>\n\nCommands:\n  up      Start\n            and mount\n  \
                    entry   Look\n  help    Print\n\nOptions:\n  -h, --help\n";
        assert_eq!(subcommands(help), ["up", "entry"]);
        assert_eq!(subcommands("Usage: weft <COMMAND>   Commands:\n  up  Start\n"), ["up"]);
        assert!(subcommands("Usage: weft up\n\nOptions:\n  -h\n").is_empty());
    }
}
