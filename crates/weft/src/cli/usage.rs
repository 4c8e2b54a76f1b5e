//! Reading the command line: help, versions, and calls that are wrong.

use super::{Cli, Command};
use crate::catalogue;
use crate::exit::{Exit, Failure};
use crate::output::ErrorFormat;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use types::{Errno, Error};

/// What a command line asks for.
#[derive(Debug)]
pub enum Call {
    /// To run a command.
    Run(Box<Command>),
    /// To print a help text or the version.
    Print(String),
}

/// Parses a command line, with the program's name.
///
/// # Errors
/// The call is wrong: its status is [`Exit::Usage`], or [`Exit::MountUsage`] for mount(8).
pub fn parse(given: &[OsString]) -> Result<Call, Failure> {
    let given = help_arguments(given);
    let parsed = Cli::command().try_get_matches_from(&given).and_then(|m| Cli::from_arg_matches(&m));
    match parsed {
        Ok(cli) => Ok(Call::Run(Box::new(cli.command))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Call::Print(error.to_string())),
            _ => {
                let is_helper = given.get(1).is_some_and(|word| word == "mount-helper");
                let exit = if is_helper { Exit::MountUsage } else { Exit::Usage };
                Err(Failure { exit, error: usage_error(&error, &command_path(&given)) })
            }
        },
    }
}

/// Returns how errors are printed: as JSON if `--json` is among the options, also if the command
/// line is wrong.
pub fn error_format(given: &[OsString]) -> ErrorFormat {
    match given.iter().take_while(|word| *word != "--").any(|word| word == "--json") {
        true => ErrorFormat::Json,
        false => ErrorFormat::Text,
    }
}

/// Replaces `weft help target add` by `weft target add --help`.
fn help_arguments(given: &[OsString]) -> Vec<OsString> {
    match given {
        [program, help, words @ ..] if help == "help" && !is_topic(words) => {
            let words = words.iter().filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
            let mut line = vec![program.clone()];
            line.extend(words.cloned());
            line.push("--help".into());
            line
        }
        given => given.to_vec(),
    }
}

/// Topic of `weft help` with the exit statuses.
pub const EXIT_STATUS: &str = "exit-status";
/// Topic of `weft help` with the rules by which commands find their cluster.
pub const DIR: &str = "dir";

fn is_topic(words: &[OsString]) -> bool {
    let is_code = |word: &OsString| catalogue::entries().any(|entry| word == entry.name);
    matches!(words, [word] if word == EXIT_STATUS || word == DIR || is_code(word))
}

/// Returns the words of a command line that name a command: `weft target add`.
fn command_path(given: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut path = "weft".to_string();
    for word in given.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(below) = command.find_subcommand(word).cloned() else { break };
        path = format!("{path} {word}");
        command = below;
    }
    path
}

/// Converts an error of the parser: the message without the usage, and as the hint what was
/// probably meant, and the help.
fn usage_error(error: &clap::Error, path: &str) -> Error {
    let help = format!("{path} --help shows how to call it");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Error::new(Errno::EINVAL, format!("{path} needs a command")).hint(help);
    }
    let rendered = error.render().to_string();
    // Without the usage and the tips, which follow after an empty line.
    let message = rendered.split("\n\n").next().unwrap_or(&rendered);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let hint = match suggestion(error) {
        Some(meant) => format!("did you mean {meant}? {help}"),
        None => help,
    };
    Error::new(Errno::EINVAL, message.join(" ")).hint(hint)
}

/// Returns what the caller probably meant, if the parser knows something similar.
fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The parser lists the most similar one last.
        ContextValue::Strings(all) => all.last().cloned(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Result<Call, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&words)
    }

    fn printed(line: &str) -> String {
        match call(line) {
            Ok(Call::Print(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn help_is_a_command_and_an_option() {
        for path in ["", "target", "target add", "group resync set"] {
            assert_eq!(
                printed(&format!("weft help {path}")),
                printed(&format!("weft {path} --help")),
                "{path}"
            );
        }
        for entry in catalogue::entries() {
            let is_command = Cli::command().find_subcommand(entry.name).is_some();
            assert!(!is_command, "the help of {} would hide that of the finding", entry.name);
        }
        let error = call("weft help targte").unwrap_err().error;
        assert!(error.hint.contains("did you mean target?"), "{error}");
    }

    #[test]
    fn a_wrong_call_names_what_was_meant() {
        for (line, message, hint) in [
            ("weft targte list", "'targte'", "did you mean target? weft --help"),
            ("weft target lits", "'lits'", "did you mean list? weft target --help"),
            ("weft target list --jsno", "'--jsno'", "did you mean --json? weft target list --help"),
            ("weft up --mount m --transport urign", "'urign'", "did you mean uring? weft up --help"),
            ("weft target", "weft target needs a command", "weft target --help"),
            ("weft umount", "<MOUNTPOINT>", "weft umount --help"),
        ] {
            let Failure { exit, error } = call(line).unwrap_err();
            assert_eq!((exit, error.errno), (Exit::Usage, Errno::EINVAL), "{line}");
            assert!(error.message.contains(message) && error.hint.contains(hint), "{line}: {error}");
            assert!(!error.message.contains('\n') && !error.message.contains("Usage"), "{line}: {error}");
        }
        assert_eq!(call("weft mount-helper").unwrap_err().exit, Exit::MountUsage);
    }

    #[test]
    fn errors_are_json_if_the_output_is() {
        let format = |line: &str| error_format(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(format("weft df --json --nonsense"), ErrorFormat::Json);
        assert_eq!(format("weft df"), ErrorFormat::Text);
        assert_eq!(format("weft entry info -- --json"), ErrorFormat::Text);
    }
}
