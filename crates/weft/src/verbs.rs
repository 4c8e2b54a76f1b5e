//! The verbs of administration: which command and which route of the HTTP interface do the same.
//!
//! Names and tags of the interface's description come from this table. Tests check that it has
//! every command and every route.

/// A command, and its counterpart in the HTTP interface.
pub struct Verb {
    /// Words of the command after `weft`.
    pub command: &'static str,
    /// Its route, as `METHOD path`.
    pub route: Counterpart,
}

/// The counterpart of a command.
#[derive(Clone, Copy)]
pub enum Counterpart {
    /// A route, as `METHOD path`.
    Route(&'static str),
    /// None, and the reason.
    #[cfg_attr(not(test), expect(dead_code, reason = "the reason is for readers, and for a test"))]
    None(&'static str),
}

/// Routes without a command: their names and the reason.
pub const ONLY_HTTP: &[(&str, &str, &str)] =
    &[("GET /v1/openapi.json", "openapi show", "it describes the interface itself")];

/// The work is on the machine of the caller.
const LOCAL: Counterpart = Counterpart::None("works on the caller's machine");
/// The command needs a mount on the machine of the caller.
const MOUNT: Counterpart = Counterpart::None("works on a path of a mount");
/// The answer takes hours: the interface has no progress of long requests.
const LONG: Counterpart = Counterpart::None("takes longer than an HTTP request may");
/// Settings that clients of the interface read and write as a whole.
const SCRUBS: Counterpart = Counterpart::Route("PUT /v1/scrubs");
const RESYNC: Counterpart = Counterpart::Route("PATCH /v1/resync");
const TARGET: Counterpart = Counterpart::Route("PATCH /v1/targets/{target}");

macro_rules! verbs {
    ($($command:literal => $route:expr;)*) => { &[$(Verb { command: $command, route: $route }),*] };
}

const fn at(route: &'static str) -> Counterpart {
    Counterpart::Route(route)
}

/// All verbs. The first command of a route gives the route its name.
pub const VERBS: &[Verb] = verbs! {
    "up" => LOCAL;
    "down" => LOCAL;
    "serve" => LOCAL;
    "mount" => LOCAL;
    "umount" => LOCAL;
    "demo" => LOCAL;
    "doctor" => LOCAL;
    "status" => at("GET /v1/status");
    "health" => at("GET /v1/health");
    "df" => Counterpart::None("GET /v1/targets and GET /v1/pools have the space");
    "cluster init" => LOCAL;
    "cluster token" => at("POST /v1/tokens");
    "cluster token list" => at("GET /v1/tokens");
    "cluster token revoke" => at("DELETE /v1/tokens/{token}");
    "cluster set" => Counterpart::None("only for measuring the cost of checksums");
    "node join" => LOCAL;
    "node list" => at("GET /v1/nodes");
    "node show" => at("GET /v1/nodes/{node}");
    "node set" => at("PATCH /v1/nodes/{node}");
    "node remove" => at("DELETE /v1/nodes/{node}");
    "entry info" => MOUNT;
    "entry set-pattern" => MOUNT;
    "entry migrate" => MOUNT;
    "rm" => MOUNT;
    "cp" => MOUNT;
    "du" => MOUNT;
    "find" => MOUNT;
    "target add" => at("POST /v1/targets");
    "target list" => at("GET /v1/targets");
    "target show" => at("GET /v1/targets/{target}");
    "target set" => TARGET;
    "target drain" => TARGET;
    "target remove" => at("DELETE /v1/targets/{target}");
    "pool list" => at("GET /v1/pools");
    "pool show" => at("GET /v1/pools/{pool}");
    "pool set" => at("PATCH /v1/pools/{pool}");
    "pool remove" => at("DELETE /v1/pools/{pool}");
    "group list" => at("GET /v1/groups");
    "group show" => at("GET /v1/groups/{group}");
    "group create" => at("POST /v1/groups");
    "group rebalance" => at("POST /v1/rebalance");
    "group recover" => at("POST /v1/recoveries");
    "group resync status" => at("GET /v1/resync");
    "group resync set" => RESYNC;
    "group resync pause" => RESYNC;
    "group resync resume" => RESYNC;
    "meta list" => Counterpart::None("internal to the metadata services");
    "meta rebalance" => Counterpart::None("internal to the metadata services");
    "meta backup" => LONG;
    "meta restore" => LOCAL;
    "meta backups list" => LOCAL;
    "client list" => at("GET /v1/clients");
    "client add" => at("POST /v1/clients");
    "client revoke" => at("DELETE /v1/clients/{client}");
    "session list" => at("GET /v1/sessions");
    "session evict" => at("DELETE /v1/sessions/{session}");
    "session show" => MOUNT;
    "export list" => at("GET /v1/exports");
    "export set" => at("PUT /v1/exports");
    "export remove" => at("DELETE /v1/exports/{clients}");
    "net show" => at("GET /v1/net");
    "scrub status" => at("GET /v1/scrubs");
    "scrub set" => SCRUBS;
    "scrub start" => SCRUBS;
    "scrub stop" => SCRUBS;
    "scrub resume" => SCRUBS;
    "fsck" => LONG;
    "bench io" => LOCAL;
    "bench meta" => LOCAL;
    "bench agent" => LOCAL;
    "bench storage" => LONG;
    "bench net" => LONG;
    "bench cpu" => LONG;
    "bench characterize" => LOCAL;
    "bench compare" => LOCAL;
    "plan" => LOCAL;
    "log level" => Counterpart::None("a setting of one process, not of the cluster");
};

/// Returns the words of the verb that a route stands for.
pub fn verb_of(method: &str, path: &str) -> Option<&'static str> {
    let is_it = |route: &str| route.split_once(' ') == Some((method, path));
    let command = VERBS.iter().find(|verb| matches!(verb.route, Counterpart::Route(route) if is_it(route)));
    let only_http = || ONLY_HTTP.iter().find(|(route, ..)| is_it(route)).map(|(_, name, _)| *name);
    command.map(|verb| verb.command).or_else(only_http)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{Command, CommandFactory};
    use std::collections::BTreeSet;

    /// Adds the commands below one that run something.
    fn leaves(command: &Command, path: &str, found: &mut BTreeSet<String>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            let words = format!("{path} {}", below.get_name()).trim_start().to_string();
            if below.get_subcommands().next().is_none() || below.get_arguments().next().is_some() {
                found.insert(words.clone());
            }
            leaves(below, &words, found);
        }
    }

    #[test]
    fn every_command_is_in_the_table_once() {
        // The list of commands must fit a screen, which leaves these out.
        let mut commands =
            BTreeSet::from(["demo", "log level", "net show", "rm", "cp", "du", "find"].map(String::from));
        leaves(&Cli::command(), "", &mut commands);
        let listed: Vec<String> = VERBS.iter().map(|verb| verb.command.to_string()).collect();
        let unique: BTreeSet<String> = listed.iter().cloned().collect();
        assert_eq!(unique.len(), listed.len(), "a command is listed twice");
        let missing: Vec<_> = commands.difference(&unique).collect();
        let unknown: Vec<_> = unique.difference(&commands).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");
    }

    #[test]
    fn what_has_no_counterpart_has_a_reason() {
        let reasons = VERBS.iter().filter_map(|verb| match verb.route {
            Counterpart::None(reason) => Some(reason),
            Counterpart::Route(_) => None,
        });
        assert!(reasons.chain(ONLY_HTTP.iter().map(|(.., reason)| *reason)).all(|reason| !reason.is_empty()));
    }

    #[test]
    fn a_route_is_named_by_its_first_command() {
        assert_eq!(verb_of("PATCH", "/v1/targets/{target}"), Some("target set"));
        assert_eq!(verb_of("GET", "/v1/openapi.json"), Some("openapi show"));
        assert_eq!(verb_of("GET", "/v1/nonsense"), None);
    }
}
