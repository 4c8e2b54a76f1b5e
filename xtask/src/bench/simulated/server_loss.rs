//! The permanent loss of a storage node: the amount of data that the others copy, and the duration.

use super::Options;
use super::model::{self, LinkRates};
use super::real_cluster::{RECORD_BYTES, RealCluster};
use crate::e2e::{Stage, TestResult, Traffic};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};
use types::Scheme;

/// Bytes per group. One file is striped over all groups, so that all contain the same amount.
pub(super) const GROUP_BYTES: u64 = 8 << 20;
/// Factor by which links are slower than for programs: the resync protocol has a fixed overhead,
/// which must be small compared with the transfer.
pub(super) const SLOWER: u64 = 4;
/// A stripe count above the number of groups.
const ALL_GROUPS: &str = "64";
/// Interval at which link counters are read, and the most that a link carries in it without resync.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_BYTES: u64 = 32 << 10;
/// Longest time until copying begins, and the idle time after which it counts as finished: nodes
/// check for work every 250 ms.
const START_WITHIN: Duration = Duration::from_secs(90);
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// Amount copied, and duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResyncResult {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// The loss of a server, measured and predicted.
pub(super) struct Row {
    servers: u8,
    real: ResyncResult,
    simulated: ResyncResult,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |copied: ResyncResult| copied.bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "| {} | {:.0} | {:.1} | {:.0} | {:.1} | {:.2} |",
            self.servers,
            mib(self.real),
            self.real.seconds,
            mib(self.simulated),
            self.simulated.seconds,
            self.real.seconds / self.simulated.seconds,
        )
    }
}

/// Returns the bytes that a node's link has carried in both directions.
fn sum(carried: Traffic) -> u64 {
    carried.received + carried.sent
}

/// Measures the loss of a server in a new cluster.
pub(super) fn measure(stage: &Stage, servers: u8, options: &Options, wires: LinkRates) -> TestResult<Row> {
    let scheme = Scheme::Mirror(2);
    let mut site = RealCluster::start(stage, servers, options)?;
    site.replace_soon()?;
    let groups = site.fill_groups(scheme, ALL_GROUPS, GROUP_BYTES / RECORD_BYTES)?;
    let lost = site.groups_of_first(&groups)?;
    site.limit(SLOWER)?;
    site.kill_one();
    let seconds = copying(&site)?;
    site.wait_until_replaced()?;
    // One server is missing, so a clean shutdown isn't possible.
    drop(site);
    let real = ResyncResult { bytes: lost * GROUP_BYTES, seconds };
    Ok(Row { servers, real, simulated: model::rebuild(servers, scheme, wires)? })
}

/// Returns the seconds from the first to the last use of the remaining servers' links.
fn copying(site: &RealCluster) -> TestResult<f64> {
    let looking = Instant::now();
    let mut before = site.traffic_of_remaining()?;
    let (mut first, mut last): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        thread::sleep(CHECK_INTERVAL);
        let (now, carried) = (Instant::now(), site.traffic_of_remaining()?);
        let busy = carried.iter().zip(&before).any(|(now, then)| sum(*now) - sum(*then) > IDLE_BYTES);
        before = carried;
        if busy {
            first.get_or_insert(now - CHECK_INTERVAL);
            last = Some(now);
        }
        match (first, last) {
            (Some(first), Some(last)) if now - last > IDLE_AFTER => return Ok((last - first).as_secs_f64()),
            (None, _) if now - looking > START_WITHIN => {
                return Err("no target copies the lost data".to_string().into());
            }
            _ => {}
        }
    }
}
