//! `weft net show`: the addresses over which a process reaches other processes, and those that
//! fail.

use super::session_show::screen_of;
use crate::cli::NetCommand;
use crate::control::{Control, PeerInfo, Request};
use crate::mountpoint;
use crate::output::{Align, show, table};
use crate::size::format_size;
use serde::de::DeserializeOwned;
use std::path::Path;
use types::{Errno, Error, Result};

/// Queries the node in a directory, or the mount at a path.
pub fn run(command: NetCommand) -> Result<()> {
    let NetCommand::Show(args) = command;
    let Some(mountpoint) = &args.mountpoint else {
        let peers: Vec<PeerInfo> = args.query.dir.find()?.ask(Request::Net)?;
        return show(args.query.json, &peers, || screen(&peers));
    };
    let peers: Vec<PeerInfo> = of_mount(mountpoint, Request::Net)?;
    if args.query.json {
        return show(true, &peers, String::new);
    }
    // A mount of an older version doesn't know this request.
    let session = of_mount(mountpoint, Request::Session).map(|info| format!("\n{}", screen_of(&info)));
    show(false, &peers, || screen(&peers) + &session.unwrap_or_default())
}

/// Sends a request to the process of a mount. Returns its answer.
pub fn of_mount<T: DeserializeOwned>(path: &Path, request: Request) -> Result<T> {
    let path = mountpoint::resolve(path)?;
    if let Some(mut control) = Control::of_mount(&path)? {
        return control.exchange(request);
    }
    let shown = path.display();
    let error = Error::new(Errno::ENOTCONN, format!("no mount of a cluster answers at {shown}"));
    Err(error
        .hint("findmnt -t fuse.weft shows the mounts; the log of a mount says why it has no control socket"))
}

fn screen(peers: &[PeerInfo]) -> String {
    let mut rows = Vec::new();
    for peer in peers {
        for link in &peer.links {
            let round_trip = link.round_trip_us.map_or_else(|| "-".into(), |us| format!("{us} us"));
            rows.push([
                peer.name.clone(),
                link.core.to_string(),
                round_trip,
                link.requests.to_string(),
                format_size(link.bytes_sent),
                format_size(link.bytes_received),
                link.connections.to_string(),
                link.connected.clone().unwrap_or_else(|| "not connected".into()),
            ]);
        }
    }
    let heading = [
        ("PEER", Align::Left),
        ("CORE", Align::Right),
        ("ROUND TRIP", Align::Right),
        ("REQUESTS", Align::Right),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("CONNECTIONS", Align::Right),
        ("OVER", Align::Left),
    ];
    let mut text = table(heading, &rows);
    let not_used: Vec<String> = peers.iter().flat_map(unusable_addresses).collect();
    if !not_used.is_empty() {
        text += "\nnot used:\n";
        not_used.iter().for_each(|line| text += line);
    }
    text
}

/// Lists unusable addresses of a peer with their causes; those that concern all cores only once.
fn unusable_addresses(peer: &PeerInfo) -> Vec<String> {
    let mut lines: Vec<String> = peer.unused.iter().map(|why| format!("  {}: {why}\n", peer.name)).collect();
    for link in &peer.links {
        let core = link.core;
        lines.extend(link.failures.iter().map(|why| format!("  {}, core {core}: {why}\n", peer.name)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LinkInfo;

    #[test]
    fn what_is_used_and_what_is_not_is_shown_with_its_reason() {
        let link = |core, connected: Option<&str>, failures: &[&str]| LinkInfo {
            core,
            connected: connected.map(Into::into),
            failures: failures.iter().map(ToString::to_string).collect(),
            round_trip_us: Some(70),
            connections: 1,
            requests: 5,
            bytes_sent: 1 << 20,
            bytes_received: 3,
        };
        let peer = PeerInfo {
            name: "node 2 (oss1)".into(),
            addresses: vec!["10.0.0.2:7500".into(), "192.168.0.2:7500".into()],
            unused: vec!["192.168.0.2:7500: not in the networks".into()],
            links: vec![
                link(0, Some("10.0.0.2:7500 (tls)"), &[]),
                link(1, None, &["10.0.0.2:7500: connection refused"]),
            ],
        };
        let text = screen(&[peer]);
        for part in [
            "10.0.0.2:7500 (tls)",
            "not connected",
            "node 2 (oss1): 192.168.0.2:7500: not in the networks",
            "node 2 (oss1), core 1: 10.0.0.2:7500: connection refused",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!screen(&[]).contains("not used"));
    }
}
