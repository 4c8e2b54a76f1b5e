//! `weft client`: the clients of a cluster, and their certificates.

use super::manage::{ask, unexpected_reply};
use crate::cli::{ClientAddArgs, ClientCommand, ClientRevokeArgs};
use crate::exit::{ArgumentCheck, Failure};
use crate::output::{Align, os_error, print, print_json, print_to_stderr, show, table};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use types::{Errno, Error, MAX_CLIENT_NAME, Result, Timestamp, is_client_name};
use wire::mgmt::{ClientInfo, ClientState, NewClient, RevocationInfo};
use wire::{MgmtReply, MgmtRequest};

/// `weft client`.
pub fn run(command: ClientCommand) -> Result<(), Failure> {
    match command {
        ClientCommand::Add(args) => {
            // Before a file of that name is created, and before management records anything.
            check_client_name(&args.name).or_usage()?;
            Ok(add(&args)?)
        }
        ClientCommand::List(query) => {
            let clients = match ask(&query.dir, MgmtRequest::ListClients)? {
                MgmtReply::Clients { clients } => clients,
                other => return Err(unexpected_reply(&other).into()),
            };
            Ok(show(query.json, &clients, || clients_table(&clients))?)
        }
        ClientCommand::Revoke(args) => {
            check_client_name(&args.name).or_usage()?;
            Ok(revoke(&args)?)
        }
    }
}

#[derive(Serialize)]
struct ClientAddOutput {
    name: String,
    /// Path of the cluster file; `None`: it is in `content`.
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

fn check_client_name(name: &str) -> Result<()> {
    match is_client_name(name) {
        true => Ok(()),
        false => Err(Error::new(Errno::EINVAL, format!("{name:?} can't be a client's name"))
            .hint(format!("use 1 to {MAX_CLIENT_NAME} letters, digits, '.', '_' and '-'"))),
    }
}

fn add(args: &ClientAddArgs) -> Result<()> {
    let to_output = args.out.as_deref() == Some(Path::new("-"));
    let out = args.out.clone().unwrap_or_else(|| format!("{}.toml", args.name).into());
    let draft = if to_output { None } else { Some(create(&out)?) };
    let wanted = NewClient { name: args.name.clone(), expires_s: args.expires, validity_s: args.validity };
    let added = match ask(&args.dir, MgmtRequest::AddClient(wanted)) {
        Ok(MgmtReply::Token { token }) => Ok(token),
        Ok(other) => Err(unexpected_reply(&other)),
        Err(error) => Err(error),
    };
    let content = match (added, &draft) {
        (Ok(content), _) => content,
        (Err(error), draft) => {
            if draft.is_some() {
                // The file is empty, and this command created it.
                let _ = fs::remove_file(&out);
            }
            return Err(error);
        }
    };
    let Some(mut file) = draft else {
        let added = ClientAddOutput { name: args.name.clone(), file: None, content: Some(content.clone()) };
        return show(args.json, &added, || content);
    };
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| {
        let hint = format!("weft client revoke {0}, then weft client add {0} again", args.name);
        os_error(format_args!("can't write {}", out.display()), &e).hint(hint)
    })?;
    let added = ClientAddOutput { name: args.name.clone(), file: Some(out.clone()), content: None };
    show(args.json, &added, || {
        let out = out.display();
        format!(
            "client {} can mount with {out}, which has its private key: weft mount {out} MOUNTPOINT\n",
            args.name
        )
    })
}

/// Creates a new file that only its owner may read.
fn create(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|e| {
        os_error(format_args!("cluster file {}", path.display()), &e)
            .hint("--out names another file, which must not exist yet")
    })
}

fn revoke(args: &ClientRevokeArgs) -> Result<()> {
    let request = MgmtRequest::RevokeClient { name: args.name.clone() };
    let outcome = match ask(&args.query.dir, request)? {
        MgmtReply::Revoked(outcome) => outcome,
        other => return Err(unexpected_reply(&other)),
    };
    if args.query.json {
        return print_json(&outcome);
    }
    let (text, warning) = revocation_text(&args.name, &outcome);
    print(&text);
    print_to_stderr(&warning);
    Ok(())
}

fn revocation_text(name: &str, RevocationInfo { sessions, unaware }: &RevocationInfo) -> (String, String) {
    let sessions = match sessions.len() {
        0 => "it had no session".to_string(),
        1 => "its session was evicted".to_string(),
        count => format!("its {count} sessions were evicted"),
    };
    let nodes: Vec<String> = unaware.iter().map(ToString::to_string).collect();
    let warning = match &nodes[..] {
        [] => String::new(),
        nodes => format!(
            "warning: node {} has not confirmed; it refuses the client as soon as management reaches it (weft node list)\n",
            nodes.join(", ")
        ),
    };
    (format!("client {name} is refused from now on; {sessions}\n"), warning)
}

fn clients_table(clients: &[ClientInfo]) -> String {
    let row = |client: &ClientInfo| {
        let renewed = match client.last_s {
            None => "always".into(),
            Some(last_s) if last_s <= client.ends_s => "no".into(),
            Some(last_s) => format!("until {}", Timestamp::new(last_s, 0)),
        };
        [
            client.name.clone(),
            state_name(client.state).into(),
            Timestamp::new(client.ends_s, 0).to_string(),
            if client.state == ClientState::Revoked { "no".into() } else { renewed },
            client.sessions.map_or_else(|| "-".into(), |count| count.to_string()),
        ]
    };
    let heading = [
        ("CLIENT", Align::Left),
        ("STATE", Align::Left),
        ("ENDS", Align::Left),
        ("RENEWED", Align::Left),
        ("SESSIONS", Align::Right),
    ];
    table(heading, &clients.iter().map(row).collect::<Vec<_>>())
}

fn state_name(state: ClientState) -> &'static str {
    match state {
        ClientState::Valid => "valid",
        ClientState::ExpiresSoon => "expires soon",
        ClientState::Expired => "expired",
        ClientState::Revoked => "revoked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{NodeId, SessionId};

    #[test]
    fn clients_are_shown_in_a_line_each() {
        let client = |name: &str, state, last_s| ClientInfo {
            name: name.into(),
            state,
            ends_s: 1_800_000_000,
            last_s,
            added_s: 0,
            sessions: Some(2),
        };
        let shown = clients_table(&[
            client("a", ClientState::Valid, None),
            client("b", ClientState::ExpiresSoon, Some(1_800_000_000)),
            client("c", ClientState::Revoked, None),
        ]);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].contains("valid") && lines[1].contains("2027-01-15 08:00 UTC  always"), "{shown}");
        assert!(lines[2].contains("expires soon") && lines[2].contains("UTC  no"), "{shown}");
        assert!(lines[3].contains("revoked") && lines[3].contains("UTC  no"), "{shown}");
    }

    #[test]
    fn a_revocation_names_the_nodes_it_has_not_reached() {
        let outcome = RevocationInfo { sessions: vec![SessionId(7)], unaware: vec![NodeId(3)] };
        let (text, warning) = revocation_text("a", &outcome);
        assert_eq!(text, "client a is refused from now on; its session was evicted\n");
        assert!(warning.contains("node 3"), "{warning}");
        assert_eq!(revocation_text("a", &RevocationInfo::default()).1, "");
    }
}
