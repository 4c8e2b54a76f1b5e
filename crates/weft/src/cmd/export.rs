//! `weft export`: access rights of clients.

use super::manage::{ask, change, unexpected_reply};
use crate::cli::{Access, ExportArgs, ExportCommand, ExportSetArgs, Squash};
use crate::exit::{ArgumentCheck, Failure};
use crate::output::{Align, show, table};
use types::{Export, ExportAccess, ExportRule, Result};
use wire::{MgmtReply, MgmtRequest};

/// `weft export`.
pub fn run(command: ExportCommand) -> Result<(), Failure> {
    match command {
        ExportCommand::List(query) => {
            let exports = match ask(&query.dir, MgmtRequest::ListExports)? {
                MgmtReply::Exports { exports } => exports,
                other => return Err(unexpected_reply(&other).into()),
            };
            Ok(show(query.json, &exports, || rules_table(&exports))?)
        }
        ExportCommand::Set(args) => {
            let rule = rule_of(&args).or_usage()?;
            Ok(change(&args.query, MgmtRequest::SetExport { rule })?)
        }
        ExportCommand::Remove(ExportArgs { clients, query }) => {
            let clients = clients.parse().or_usage()?;
            Ok(change(&query, MgmtRequest::RemoveExport { clients })?)
        }
    }
}

fn rule_of(args: &ExportSetArgs) -> Result<ExportRule> {
    let access = match args.access {
        Access::Rw => ExportAccess::Rw,
        Access::Ro => ExportAccess::Ro,
        Access::None => ExportAccess::None,
    };
    let squash = match args.squash {
        Squash::None => types::Squash::None,
        Squash::Root => types::Squash::Root,
        Squash::All => types::Squash::All,
    };
    let export = Export { access, squash, anon_uid: args.anon_uid, anon_gid: args.anon_gid };
    Ok(ExportRule { clients: args.clients.parse()?, export })
}

fn rules_table(exports: &[ExportRule]) -> String {
    let row = |rule: &ExportRule| {
        let access = match rule.export.access {
            ExportAccess::Rw => "rw",
            ExportAccess::Ro => "ro",
            ExportAccess::None => "none",
        };
        let (squash, anonymous) = match rule.export.squash {
            types::Squash::None => ("none", "-".to_string()),
            types::Squash::Root => ("root", anonymous_ids(&rule.export)),
            types::Squash::All => ("all", anonymous_ids(&rule.export)),
        };
        [rule.clients.to_string(), access.into(), squash.into(), anonymous]
    };
    let heading = [
        ("CLIENTS", Align::Left),
        ("ACCESS", Align::Left),
        ("SQUASH", Align::Left),
        ("ANONYMOUS", Align::Left),
    ];
    table(heading, &exports.iter().map(row).collect::<Vec<_>>())
}

fn anonymous_ids(export: &Export) -> String {
    format!("{}:{}", export.anon_uid, export.anon_gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_shown_in_a_line_each() {
        let squashed = Export { squash: types::Squash::Root, ..Export::default() };
        let none = Export { access: ExportAccess::None, ..Export::default() };
        let rule = |clients: &str, export| ExportRule { clients: clients.parse().unwrap(), export };
        let shown = rules_table(&[rule("local", squashed), rule("0.0.0.0/0", none)]);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["local", "rw", "root", "65534:65534"]);
        assert_eq!(lines[2], ["0.0.0.0/0", "none", "none", "-"]);
    }
}
