//! Ceilings: has a service measure them, and management store the results.

use crate::control::MeasurementRequest;
use crate::output::os_error;
use ::node::MgmtChannel;
use routing::StorageChannel;
use serde_json::Value;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use types::{ChunkFileId, ClusterMap, Errno, Error, Node, NodeId, NodeState, Result, SessionId, TargetId};
use wire::mgmt::CeilingInfo;
use wire::{Measure, MeasuredRate, MgmtRequest, RateQuantity, StorageOp, StorageReply, StorageRequest};

/// Interval of checks whether the caller still waits.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time that a measurement may take beyond its own duration: writing and removing the file, and
/// connecting.
const MARGIN: Duration = Duration::from_secs(120);

/// Upper bound of the parts of a measurement (a drive has four). None takes longer than the
/// requested time.
const MAX_PARTS: u32 = 5;

impl MeasurementRequest {
    /// Returns the node that measures, according to the map.
    pub fn node<'a>(&self, map: &'a ClusterMap) -> Result<&'a Node> {
        let id = match self {
            MeasurementRequest::Drive { target, .. } => self.target_in(map, *target)?,
            MeasurementRequest::Network { from, .. } => *from,
            MeasurementRequest::Cpu { node, .. } => *node,
        };
        let node = map.node(id).ok_or_else(|| {
            Error::new(Errno::ENOENT, format!("there is no node {id}")).hint("weft node list shows all")
        })?;
        if node.state == NodeState::Offline {
            return Err(Error::new(Errno::ENOTCONN, format!("node {id} ({}) is offline", node.name))
                .hint("start weft serve on it, or measure the others"));
        }
        Ok(node)
    }

    fn target_in(&self, map: &ClusterMap, target: TargetId) -> Result<NodeId> {
        let found = map.target(target).map(|target| target.node);
        found.ok_or_else(|| {
            Error::new(Errno::ENOENT, format!("there is no target {target}"))
                .hint("weft target list shows all")
        })
    }

    fn request(&self) -> (StorageRequest, Duration) {
        let (target, what, milliseconds) = match *self {
            MeasurementRequest::Drive { target, size, milliseconds } => {
                (target, Measure::Drive { size }, milliseconds)
            }
            MeasurementRequest::Network { to, streams, milliseconds, .. } => {
                (TargetId(0), Measure::Network { to, streams }, milliseconds)
            }
            MeasurementRequest::Cpu { milliseconds, .. } => (TargetId(0), Measure::Cpu, milliseconds),
        };
        let op = StorageOp::Measure { what, milliseconds };
        let timeout = Duration::from_millis(milliseconds).saturating_mul(MAX_PARTS).saturating_add(MARGIN);
        (StorageRequest::new(SessionId(0), target, ChunkFileId(0), op), timeout)
    }

    /// Returns the label of a result. Processor results come in pairs: one core, then all cores.
    fn place(&self, index: usize) -> String {
        match self {
            MeasurementRequest::Drive { target, .. } => format!("target {target}"),
            MeasurementRequest::Network { from, to, .. } => format!("node {from} to node {to}"),
            MeasurementRequest::Cpu { node, .. } if index.is_multiple_of(2) => {
                format!("node {node}, one core")
            }
            MeasurementRequest::Cpu { node, .. } => format!("node {node}"),
        }
    }

    /// Has the service behind the channel measure, and management store the results.
    pub async fn execute(self, service: StorageChannel, management: MgmtChannel) -> Result<Vec<CeilingInfo>> {
        let (request, timeout) = self.request();
        let answer = rt::timeout(timeout, service.call(request, None)).await.ok_or_else(|| {
            Error::new(Errno::ETIMEDOUT, format!("the measurement of {} timed out", self.place(1))).hint(
                "weft health shows the state of its node; fewer --seconds or a smaller --size take less time",
            )
        })?;
        let StorageReply::Rates(rates) = answer? else {
            return Err(Error::new(Errno::EPROTO, "the service sent an unexpected reply")
                .hint("install the same version of weft on all machines"));
        };
        let measured = bench::rfc3339(rt::now().secs);
        let info = |(index, rate): (usize, &MeasuredRate)| CeilingInfo {
            limit: limit_name(rate.of).into(),
            place: self.place(index),
            rate: rate.rate as f64,
            streams: rate.streams,
            measured: measured.clone(),
        };
        let ceilings: Vec<CeilingInfo> = rates.iter().enumerate().map(info).collect();
        management.call(MgmtRequest::NoteCeilings { ceilings: ceilings.clone() }, None).await?;
        Ok(ceilings)
    }
}

/// Returns the name that [`bench::Limit`] serializes to.
fn limit_name(of: RateQuantity) -> &'static str {
    match of {
        RateQuantity::Write => "storage-write",
        RateQuantity::Read => "storage-read",
        RateQuantity::RandomWrite => "storage-random-write",
        RateQuantity::RandomRead => "storage-random-read",
        RateQuantity::Network => "network",
        RateQuantity::RoundTrips => "round-trips",
        RateQuantity::MemoryCopy => "memory-copy",
        RateQuantity::Checksum => "checksum",
        RateQuantity::Encoding => "encoding",
    }
}

/// Runs the work on a core of the calling thread, until it is done or the caller has closed its
/// connection.
pub fn run_while_connected(
    client: UnixStream,
    work: impl Future<Output = Result<Vec<CeilingInfo>>> + 'static,
) -> Result<Value> {
    let watched = async move {
        let mut work = Box::pin(work);
        loop {
            match rt::timeout(POLL_INTERVAL, work.as_mut()).await {
                Some(outcome) => return outcome,
                None if is_disconnected(&client) => {
                    return Err(Error::new(
                        Errno::ECANCELED,
                        "the caller closed the connection during the measurement",
                    ));
                }
                None => {}
            }
        }
    };
    let ceilings = rt::block_on(watched).map_err(|e| os_error("io_uring", &e))??;
    serde_json::to_value(ceilings)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
}

/// Returns whether the other end has closed the connection. It sends nothing after its request.
fn is_disconnected(mut client: &UnixStream) -> bool {
    if client.set_nonblocking(true).is_err() {
        return true;
    }
    let is_closed = matches!(client.read(&mut [0]), Ok(0));
    // The answer is written in blocking mode.
    client.set_nonblocking(false).is_err() || is_closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_connection_aborts_the_measurement() {
        let (client, other) = UnixStream::pair().unwrap();
        let stays = other.try_clone().unwrap();
        drop(other);
        assert!(!is_disconnected(&client));
        drop(stays);
        assert!(is_disconnected(&client));
        let ended = run_while_connected(client, std::future::pending());
        assert_eq!(ended.unwrap_err().errno, Errno::ECANCELED);
    }

    #[test]
    fn limits_have_the_names_of_results() {
        let all = [
            RateQuantity::Write,
            RateQuantity::Read,
            RateQuantity::RandomWrite,
            RateQuantity::RandomRead,
            RateQuantity::Network,
            RateQuantity::RoundTrips,
            RateQuantity::MemoryCopy,
            RateQuantity::Checksum,
            RateQuantity::Encoding,
        ];
        for of in all {
            let name = Value::String(limit_name(of).into());
            assert!(serde_json::from_value::<bench::Limit>(name.clone()).is_ok(), "{name}");
        }
    }
}
