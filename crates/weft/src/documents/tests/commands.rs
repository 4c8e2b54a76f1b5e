//! Commands in documents parse: every `weft` command has existing subcommands, options and values.

use super::text::parts;
use crate::cli::Cli;
use clap::Parser;
use clap::error::ErrorKind;

/// Pages that are generated from the program itself.
const GENERATED: &[&str] = &["docs/reference/cli.md"];

/// How much of a command a document shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// All of it: it runs as it is written, but for its placeholders.
    Whole,
    /// A part: required arguments may be absent.
    Part,
}

/// Splits a line of shell text into commands, and each command into words. Comments and
/// redirections are dropped.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = vec![vec![]];
    let (mut word, mut quote, mut is_open) = (String::new(), None, false);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(end), _) if letter == end => quote = None,
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => (quote, is_open) = (Some(letter), true),
            (None, '#') if word.is_empty() && !is_open => break,
            (None, ' ' | ';' | '&' | '|' | '(' | ')' | '>' | '<') => {
                if is_open || !word.is_empty() {
                    found.last_mut().unwrap().push(std::mem::take(&mut word));
                    is_open = false;
                }
                match letter {
                    ' ' => {}
                    '>' | '<' => found.push(vec!["redirection".into()]),
                    _ => found.push(vec![]),
                }
            }
            (None, _) => word.push(letter),
        }
    }
    if is_open || !word.is_empty() {
        found.last_mut().unwrap().push(word);
    }
    found
}

/// Returns the `weft` commands of a line, each without its first word.
fn weft_commands(line: &str) -> Vec<Vec<String>> {
    let is_weft = |word: &String| word == "weft" || word.ends_with("/weft") && !word.starts_with("/srv");
    let runs = |words: &Vec<String>| words.first().is_some_and(is_weft);
    commands(line).into_iter().filter(runs).map(|words| words[1..].to_vec()).collect()
}

/// Returns whether a word stands for a value: `ID`, `MOUNTPOINT`, `FILE1`.
fn is_placeholder(word: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "-_.".contains(c);
    word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(is_letter)
}

/// Returns why a command doesn't parse.
fn rejection(words: &[String], extent: Extent) -> Option<String> {
    let mut extent = extent;
    let mut line = vec!["weft".to_string()];
    for word in words {
        match word.as_str() {
            // The document leaves something out, or names several commands.
            "..." | "/" => {
                extent = Extent::Part;
                break;
            }
            _ if is_placeholder(word) => {
                let is_scheme = line.last().is_some_and(|option| option == "--scheme");
                line.push(if is_scheme { "single" } else { "1" }.into());
            }
            _ => line.push(word.trim_end_matches("...").into()),
        }
    }
    let error = Cli::try_parse_from(&line).err()?;
    let is_accepted = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => extent == Extent::Part,
        // `--rate` without its value.
        ErrorKind::InvalidValue => {
            extent == Extent::Part && error.to_string().contains("a value is required")
        }
        _ => false,
    };
    (!is_accepted).then(|| format!("{}: {}", line.join(" "), error.to_string().lines().next().unwrap()))
}

/// Returns the commands of a document that don't parse, with their lines.
fn rejected(text: &str) -> Vec<String> {
    let (blocks, spans) = parts(text);
    let mut found = Vec::new();
    let mut check = |line: usize, text: &str, extent| {
        let failed = weft_commands(text).into_iter().filter_map(|words| rejection(&words, extent));
        found.extend(failed.map(|why| format!("{line}: {why}")));
    };
    for block in blocks.iter().filter(|block| ["sh", ""].contains(&block.language.as_str())) {
        let extent = if block.language == "sh" { Extent::Whole } else { Extent::Part };
        let mut joined = String::new();
        for (index, line) in block.lines.iter().enumerate() {
            match line.strip_suffix('\\') {
                Some(begun) => joined += begun,
                None => check(block.line + index, &(std::mem::take(&mut joined) + line), extent),
            }
        }
    }
    spans.iter().for_each(|span| check(span.line, &span.text, Extent::Part));
    found
}

#[test]
fn commands_in_documents_parse() {
    let documents = super::all().into_iter().filter(|(path, _)| !GENERATED.contains(&path.as_str()));
    let failed: Vec<String> = documents
        .flat_map(|(path, text)| rejected(&text).into_iter().map(move |why| format!("{path}:{why}")))
        .collect();
    assert!(failed.is_empty(), "commands of documents don't parse:\n{}", failed.join("\n"));
}

#[test]
fn wrong_commands_are_found() {
    let count = |text: &str| rejected(text).len();
    assert_eq!(
        count("```sh\nweft target drain 2 --wait   # ends; weft nonsense\nsudo true && weft df\n```\n"),
        0
    );
    assert_eq!(count("```sh\nweft target drain\n```\n"), 1, "a block is complete");
    assert_eq!(count("`weft migrate --recursive --scheme S DIR`"), 0);
    assert_eq!(count("`weft target drain` and `weft target drain ID`"), 0);
    assert_eq!(count("`weft target empty ID` and `weft target drain ID\n--waits`"), 2);
    assert_eq!(count("```sh\nmount x && weft up --mount /m --frob | tee log\n```\n"), 1);
    assert_eq!(count("```sh\nweft up --mount /m \\\n  --frob\n```\n"), 1);
    assert_eq!(count("```sh\nweft entry set-pattern DIR --scheme mirrored:2 > log\n```\n"), 1);
}
