//! `weft bench storage`, `net` and `cpu`: the performance of the hardware without the file system.

use crate::cli::{BenchCeilingOptions, BenchCpuArgs, BenchNetArgs, BenchStorageArgs, PlaceOption};
use crate::cmd::manage::{ask, unexpected_reply};
use crate::control::{MeasurementRequest, Request};
use crate::output::{Align, show, table};
use crate::progress::{Done, Progress};
use crate::size::format_size;
use bench::{Ceiling, Limit};
use mgmt::FIRST_NODE;
use std::time::Duration;
use types::{Errno, Error, NodeId, NodeState, Result, TargetId, TargetState};
use wire::mgmt::{CeilingInfo, NodeInfo, TargetInfo};
use wire::{MgmtReply, MgmtRequest};

/// Time that a measurement may take beyond its own duration, on the waiting side. The services
/// abort it earlier.
const MARGIN: Duration = Duration::from_secs(300);

/// Ceilings per request to management: some 200 KiB of at most 1 MiB.
const CEILINGS_PER_REQUEST: usize = 1000;

/// Measures targets, one after the other.
pub fn storage(args: &BenchStorageArgs) -> Result<()> {
    let of_drives = |limit| {
        use Limit::{StorageRandomRead, StorageRandomWrite, StorageRead, StorageWrite};
        matches!(limit, StorageWrite | StorageRead | StorageRandomWrite | StorageRandomRead)
    };
    if args.how.last {
        return last(&args.how, of_drives);
    }
    let targets = targets(args)?;
    let order = |&target| MeasurementRequest::Drive {
        target,
        size: args.size,
        milliseconds: milliseconds(&args.how),
    };
    let orders: Vec<MeasurementRequest> = targets.iter().map(order).collect();
    measure(&args.how, &orders)
}

fn targets(args: &BenchStorageArgs) -> Result<Vec<TargetId>> {
    if !args.target.is_empty() {
        return Ok(args.target.iter().copied().map(TargetId).collect());
    }
    let all: Vec<TargetInfo> = match ask(&args.how.query.dir, MgmtRequest::ListTargets)? {
        MgmtReply::Targets { targets } => targets,
        other => return Err(unexpected_reply(&other)),
    };
    let online = all.iter().filter(|t| t.target.state == TargetState::Online).map(|t| t.target.id);
    Ok(online.collect())
}

/// Measures each pair of nodes, in both directions.
pub fn net(args: &BenchNetArgs) -> Result<()> {
    if args.how.last {
        return last(&args.how, |limit| matches!(limit, Limit::Network | Limit::RoundTrips));
    }
    let nodes = nodes(&args.how)?;
    if nodes.len() < 2 {
        let message = match nodes.len() {
            0 => "this cluster is one process: there is no network between its services",
            _ => "only one node is online: there is no network between nodes to measure",
        };
        return Err(Error::new(Errno::EOPNOTSUPP, message)
            .hint("weft bench storage and weft bench cpu measure what it has"));
    }
    let mut orders = Vec::new();
    for (from, to) in nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to))) {
        let order = |&streams| {
            let milliseconds = milliseconds(&args.how);
            MeasurementRequest::Network { from, to, streams, milliseconds }
        };
        orders.extend(args.streams.iter().filter(|_| from != to).map(order));
    }
    measure(&args.how, &orders)
}

/// Measures the nodes' processors.
pub fn cpu(args: &BenchCpuArgs) -> Result<()> {
    if args.how.last {
        return last(&args.how, |limit| {
            matches!(limit, Limit::MemoryCopy | Limit::Checksum | Limit::Encoding)
        });
    }
    let mut nodes = nodes(&args.how)?;
    if nodes.is_empty() {
        nodes.push(FIRST_NODE);
    }
    let order = |&node| MeasurementRequest::Cpu { node, milliseconds: milliseconds(&args.how) };
    let orders: Vec<MeasurementRequest> = nodes.iter().map(order).collect();
    measure(&args.how, &orders)
}

/// Returns the online nodes; none in a cluster in one process.
fn nodes(how: &BenchCeilingOptions) -> Result<Vec<NodeId>> {
    let all: Vec<NodeInfo> = match ask(&how.query.dir, MgmtRequest::ListNodes)? {
        MgmtReply::Nodes { nodes } => nodes,
        other => return Err(unexpected_reply(&other)),
    };
    Ok(all.iter().filter(|n| n.node.state == NodeState::Online).map(|n| n.node.id).collect())
}

fn milliseconds(how: &BenchCeilingOptions) -> u64 {
    how.seconds * 1000
}

/// Measures one after the other, so that none disturbs another. Ctrl-C ends this process, and with
/// it the running measurement.
fn measure(how: &BenchCeilingOptions, orders: &[MeasurementRequest]) -> Result<()> {
    let progress = Progress::start("measuring");
    let best = measured(&how.query.dir, how.seconds, orders, (&progress, &|| false))?;
    drop(progress);
    show_ceilings(how, &best)
}

/// Has the nodes measure, through the node in `dir`, one order after the other until `is_over`.
/// Management stores the best result of each limit and place.
///
/// # Errors
/// Errors of a node or of management; `EINTR` if `is_over` before the end.
pub(super) fn measured(
    dir: &PlaceOption,
    seconds: u64,
    orders: &[MeasurementRequest],
    (progress, is_over): (&Progress, &dyn Fn() -> bool),
) -> Result<Vec<Ceiling>> {
    let mut found: Vec<Ceiling> = Vec::new();
    for (at, order) in orders.iter().enumerate() {
        if is_over() {
            return Err(Error::new(Errno::EINTR, "ended by a signal while ceilings were measured"));
        }
        progress.update(format!("measuring {order}"), Done::Things(at as u64, Some(orders.len() as u64)));
        let timeout = Duration::from_secs(seconds * 5) + MARGIN;
        let infos: Vec<CeilingInfo> =
            dir.find()?.ask_with_timeout(Request::Measure { order: order.clone() }, timeout)?;
        found.extend(infos.iter().filter_map(ceiling));
    }
    let best = best_of_each(found);
    store_best(dir, &best)?;
    Ok(best)
}

/// Stores the best of several measurements with different numbers of streams: the services have
/// stored the last one.
fn store_best(dir: &PlaceOption, best: &[Ceiling]) -> Result<()> {
    let ceilings: Vec<CeilingInfo> = best.iter().filter_map(info).collect();
    for some in ceilings.chunks(CEILINGS_PER_REQUEST) {
        match ask(dir, MgmtRequest::NoteCeilings { ceilings: some.to_vec() })? {
            MgmtReply::Done => {}
            other => return Err(unexpected_reply(&other)),
        }
    }
    Ok(())
}

fn best_of_each(found: Vec<Ceiling>) -> Vec<Ceiling> {
    let mut best: Vec<Ceiling> = Vec::new();
    for ceiling in found {
        match best.iter_mut().find(|b| b.limit == ceiling.limit && b.place == ceiling.place) {
            Some(other) if other.rate >= ceiling.rate => {}
            Some(other) => *other = ceiling,
            None => best.push(ceiling),
        }
    }
    best
}

fn last(how: &BenchCeilingOptions, wanted: impl Fn(Limit) -> bool) -> Result<()> {
    let kept = match ask(&how.query.dir, MgmtRequest::ListCeilings)? {
        MgmtReply::Ceilings { ceilings, .. } => ceilings,
        other => return Err(unexpected_reply(&other)),
    };
    let kept: Vec<Ceiling> = kept.iter().filter_map(ceiling).filter(|c| wanted(c.limit)).collect();
    show_ceilings(how, &kept)
}

/// Converts a ceiling; `None` for a limit that only later versions know.
pub fn ceiling(info: &CeilingInfo) -> Option<Ceiling> {
    let CeilingInfo { limit, place, rate, streams, measured } = info.clone();
    let limit = serde_json::from_value(serde_json::Value::String(limit)).ok()?;
    Some(Ceiling { limit, place, rate, streams, measured })
}

fn info(ceiling: &Ceiling) -> Option<CeilingInfo> {
    let Ceiling { limit, place, rate, streams, measured } = ceiling.clone();
    let limit = serde_json::to_value(limit).ok()?.as_str()?.to_string();
    Some(CeilingInfo { limit, place, rate, streams, measured })
}

fn show_ceilings(how: &BenchCeilingOptions, ceilings: &[Ceiling]) -> Result<()> {
    show(how.query.json, &ceilings, || match ceilings.is_empty() {
        true => "nothing has been measured\n".into(),
        false => screen(ceilings),
    })
}

fn limit_label(limit: Limit) -> (&'static str, bool) {
    match limit {
        Limit::StorageWrite => ("sequential write", true),
        Limit::StorageRead => ("sequential read", true),
        Limit::StorageRandomWrite => ("random 4 KiB write", false),
        Limit::StorageRandomRead => ("random 4 KiB read", false),
        Limit::Network => ("network", true),
        Limit::RoundTrips => ("round trips", false),
        Limit::MemoryCopy => ("copy in memory", true),
        Limit::Checksum => ("checksum", true),
        Limit::Encoding => ("encoding, Reed-Solomon 8+2", true),
        Limit::Processors => ("processors", true),
        Limit::FuseCalls => ("calls of a mount", false),
    }
}

fn screen(ceilings: &[Ceiling]) -> String {
    let row = |c: &Ceiling| {
        let (what, is_bytes) = limit_label(c.limit);
        let rate = match is_bytes {
            true => format!("{}/s", format_size(c.rate as u64)),
            false => format!("{:.0} a second", c.rate),
        };
        [c.place.clone(), what.into(), rate, c.streams.to_string(), c.measured.clone()]
    };
    let heading = [
        ("WHERE", Align::Left),
        ("WHAT", Align::Left),
        ("RATE", Align::Right),
        ("STREAMS", Align::Right),
        ("MEASURED", Align::Left),
    ];
    table(heading, &ceilings.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rate: f64, streams: u32) -> Ceiling {
        let (place, measured) = ("node 1 to node 2".into(), "2026-11-23T01:45:00Z".into());
        Ceiling { limit: Limit::Network, place, rate, streams, measured }
    }

    #[test]
    fn the_best_number_of_streams_is_shown() {
        let best = best_of_each(vec![found(1e9, 1), found(3e9, 2), found(2e9, 4)]);
        assert_eq!(best, [found(3e9, 2)]);
        let text = screen(&best);
        assert!(text.contains("node 1 to node 2") && text.contains("GiB/s"), "{text}");
        assert_eq!(ceiling(&info(&best[0]).unwrap()), Some(best[0].clone()));
        let later = CeilingInfo { limit: "warp".into(), ..info(&best[0]).unwrap() };
        assert_eq!(ceiling(&later), None);
    }
}
