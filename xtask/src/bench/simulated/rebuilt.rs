//! A storage node is lost for good: what the others copy, and how long that takes.

use super::Options;
use super::model::{self, Wires};
use super::site::{RECORD_BYTES, Site};
use crate::e2e::{Carried, Stage, TestResult};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};
use types::Scheme;

/// Bytes of each group. One file is striped over all of them, so that all have the same.
pub(super) const GROUP_BYTES: u64 = 8 << 20;
/// Wires are as much slower than for programs: what happens between copies takes its time at any
/// rate, and shall be little beside them.
pub(super) const SLOWER: u64 = 4;
/// More stripes than there are groups.
const ALL_GROUPS: &str = "64";
/// How often it is looked what wires have carried, and what goes over one meanwhile at most where
/// nothing is copied.
const LOOK: Duration = Duration::from_millis(100);
const IDLE_BYTES: u64 = 32 << 10;
/// How long copying may not have begun, and how long nothing may be copied, until it is over: nodes
/// look for work each 250 ms.
const BEGINS_WITHIN: Duration = Duration::from_secs(90);
const OVER_AFTER: Duration = Duration::from_secs(5);

/// What was copied, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// A lost server, as it was and as it was said to be.
pub(super) struct Row {
    servers: u8,
    real: Copied,
    simulated: Copied,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |copied: Copied| copied.bytes as f64 / f64::from(1 << 20);
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

/// What a node's wire has carried, both ways.
fn sum(carried: Carried) -> u64 {
    carried.received + carried.sent
}

/// Loses a server of a cluster of its own.
pub(super) fn measure(stage: &Stage, servers: u8, options: &Options, wires: Wires) -> TestResult<Row> {
    let scheme = Scheme::Mirror(2);
    let mut site = Site::start(stage, servers, options)?;
    site.replace_soon()?;
    let groups = site.fill_groups(scheme, ALL_GROUPS, GROUP_BYTES / RECORD_BYTES)?;
    let lost = site.count_of_first(&groups)?;
    site.limit(SLOWER)?;
    site.kill_one();
    let seconds = copying(&site)?;
    site.wait_until_replaced()?;
    // A server is missing, so that not everything can end in good order.
    drop(site);
    let real = Copied { bytes: lost * GROUP_BYTES, seconds };
    Ok(Row { servers, real, simulated: model::rebuild(servers, scheme, wires)? })
}

/// Seconds from when the wires of the servers that are left begin to be used until they aren't any
/// more.
fn copying(site: &Site) -> TestResult<f64> {
    let looking = Instant::now();
    let mut before = site.carried_by_rest()?;
    let (mut first, mut last): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        thread::sleep(LOOK);
        let (now, carried) = (Instant::now(), site.carried_by_rest()?);
        let busy = carried.iter().zip(&before).any(|(now, then)| sum(*now) - sum(*then) > IDLE_BYTES);
        before = carried;
        if busy {
            first.get_or_insert(now - LOOK);
            last = Some(now);
        }
        match (first, last) {
            (Some(first), Some(last)) if now - last > OVER_AFTER => return Ok((last - first).as_secs_f64()),
            (None, _) if now - looking > BEGINS_WITHIN => {
                return Err("nobody copies what was lost".to_string().into());
            }
            _ => {}
        }
    }
}
