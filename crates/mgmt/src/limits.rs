//! Every time and limit of the service, with its unit and its reason.

use std::time::Duration;

/// How often targets are measured and nodes are checked: `df` and the placement choosers lag at
/// most this much.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Interval of a node's heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// A node without a heartbeat for this long gets no new files: three heartbeats were lost.
pub const PROBABLY_OFFLINE_AFTER: Duration = Duration::from_secs(6);

/// A node without a heartbeat for this long is offline. Longer than [`SERVING_LEASE`] by more than
/// clocks drift in that time, so that the node has stopped taking writes before others rely on
/// that.
pub const OFFLINE_AFTER: Duration = Duration::from_secs(15);

/// How long a storage node takes writes after it sent the last answered heartbeat.
pub const SERVING_LEASE: Duration = Duration::from_secs(10);

/// How long a primary must be unreachable before another member replaces it: longer than
/// [`SERVING_LEASE`] by more than clocks drift in that time, so that it has stopped serving.
/// Shorter than [`OFFLINE_AFTER`], since writers are waiting.
pub const REPLACE_PRIMARY_AFTER: Duration = Duration::from_secs(12);

/// How long a revocation waits until every node confirms it, in heartbeats of two seconds: a node
/// that hasn't by then takes no changes any more ([`SERVING_LEASE`]).
pub const REVOCATION_TIMEOUT: Duration = Duration::from_secs(12);

/// How long a group's primary waits for the node of an ejected member, which either confirms the
/// ejection or is unreachable for [`REPLACE_PRIMARY_AFTER`]; then the primary repeats the request.
pub const MAX_EJECTION_WAIT: Duration = Duration::from_secs(20);

/// How often that condition is checked, if no heartbeat arrives.
pub const EJECTION_POLL: Duration = Duration::from_millis(250);

/// A member whose target is unreachable for this long is replaced, unless the settings say
/// otherwise: longer than a machine takes to restart and to be looked after, since copying
/// everything costs more than waiting.
pub const REPLACE_MEMBER_AFTER: Duration = Duration::from_secs(30 * 60);

/// All members of a group that are in sync must be unreachable for this long before an
/// administrator may give them up; or for as long as the replacement of lost members takes, if that
/// is less. Longer than a machine takes to restart.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(5 * 60);

/// How often management probes each address of a node that sends heartbeats.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// How soon an address that could not be reached is probed again: a finding should end soon after
/// its cause.
pub const PROBE_RETRY: Duration = Duration::from_secs(2);

/// Time-out of one probe: a connection and its handshake.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Probes at a time. If all addresses of a cluster of [`MAX_NODES`] hang, all are probed within
/// some minutes; those that answer, within seconds.
pub const MAX_PROBES: usize = 32;

/// How long a node must send heartbeats without being reachable before that is a finding: a single
/// failed probe isn't one.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// How often a member reports nodes that it can't reach, while that lasts.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// An older report is ignored: three later ones were lost.
pub const REPORT_VALIDITY: Duration = Duration::from_secs(35);

/// Largest number of members with stored reports, the latest ones; each takes some 2 KiB at most.
pub const MAX_REPORTS: usize = 4096;

/// Characters of a name or a cause in a report.
pub const MAX_REPORT_TEXT: usize = 160;
/// A draining target must be unreachable for this long before its draining counts as stuck: longer
/// than a restart of its node takes.
pub const DRAIN_STUCK_AFTER: Duration = Duration::from_secs(60);

/// Pause after a count of the files in lost groups. A file that was begun when a target was
/// reachable is recorded long before.
pub const LOST_COUNT_PAUSE: Duration = Duration::from_secs(15);

/// The pause lasts this many times as long as the count, if that is longer: all inodes are read.
pub const LOST_COUNT_PAUSE_FACTOR: u64 = 20;

/// Largest number of resyncs in a heartbeat; a target is in some dozens of groups.
pub const MAX_RESYNCS: usize = 1024;

/// Largest difference between the clocks of a node and of management, in seconds: file times come
/// from both.
pub const MAX_CLOCK_SKEW_S: u64 = 30;

/// A watch of the map is answered after this long even without a change, so that free space is
/// updated.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// Largest number of nodes in a cluster: every node and client gets the whole map with each change.
pub const MAX_NODES: usize = 1024;

/// Largest number of targets in a cluster, so that the map usually stays below a MiB: with its
/// group each takes some 260 bytes.
pub const MAX_TARGETS: usize = 2048;

/// Largest number of export rules: every request of a client without a cached result is compared
/// with all of them.
pub const MAX_EXPORTS: usize = 256;

/// Largest number of addresses of a node.
pub const MAX_ADDRESSES: usize = 16;

/// Characters of the name of a node or a pool: a host name fits.
pub const MAX_NAME: usize = 64;

/// Largest number of scrub reports of one node: a node has fewer targets.
pub(crate) const MAX_SCRUBS: usize = 1024;
