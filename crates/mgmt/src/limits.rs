//! Every time and limit of the service, with its unit and its reason.

use std::time::Duration;

/// How often targets are measured and nodes looked after: `df` and the choosers are at most this
/// far behind.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// How often a node says that it is alive.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// A node that was silent for this long gets no new files: three heartbeats were lost.
pub const PROBABLY_OFFLINE_AFTER: Duration = Duration::from_secs(6);

/// A node that was silent for this long is down. Longer than [`SERVING_LEASE`] by more than clocks
/// drift in that time, so that the node has stopped to take writes before anybody counts on it.
pub const OFFLINE_AFTER: Duration = Duration::from_secs(15);

/// How long a storage node takes writes after it has sent the last heartbeat that was answered.
pub const SERVING_LEASE: Duration = Duration::from_secs(10);

/// How long a primary has to be silent before another member replaces it: longer than
/// [`SERVING_LEASE`] by more than clocks drift in that time, so that it has stopped to serve.
/// Sooner than a node is called offline, since writers wait for it.
pub const REPLACED_AFTER: Duration = Duration::from_secs(12);

/// How long a revocation waits until every node says that it goes by it, in heartbeats of two
/// seconds: by then one that hasn't said so takes no changes any more ([`SERVING_LEASE`]).
pub const REVOCATION_PATIENCE: Duration = Duration::from_secs(12);

/// How long the primary of a group is kept waiting for the node of a member that was taken out,
/// which either says that it knows or is silent for [`REPLACED_AFTER`]; then the primary asks
/// again.
pub const MAX_SETTLE: Duration = Duration::from_secs(20);

/// How often it is looked whether that is so, if no heartbeat comes.
pub const SETTLE_POLL: Duration = Duration::from_millis(250);

/// A member whose target has been gone for this long is replaced, unless the settings say
/// otherwise: longer than a machine takes to start anew and to be looked after, since copying
/// everything costs more than waiting.
pub const LOST_AFTER: Duration = Duration::from_secs(30 * 60);

/// All good members of a group must have been gone for this long before an administrator may give
/// them up, or for as long as lost members are replaced after if that is less: longer than a
/// machine takes to start anew.
pub const GIVEN_UP_AFTER: Duration = Duration::from_secs(5 * 60);

/// How often management tries to reach each address of a node that sends heartbeats.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// How soon one is tried again that could not be reached: a finding should end soon after its
/// cause.
pub const PROBE_RETRY: Duration = Duration::from_secs(2);

/// How long one try may take: a connection and its handshake.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Tries at a time. All addresses of a cluster of [`MAX_NODES`] that hang are tried within some
/// minutes, those that answer within seconds.
pub const MAX_PROBES: usize = 32;

/// How long a node must have sent heartbeats without being reached before that is a finding: a try
/// that was lost is none.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// How often a member reports nodes that it can't reach, while that is so.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A report that is older says nothing any more: three of them were lost.
pub const REPORT_VALIDITY: Duration = Duration::from_secs(35);

/// Members whose reports are kept, the latest ones; each takes some 2 KiB at most.
pub const MAX_REPORTS: usize = 4096;

/// Characters of a name or a cause in a report.
pub const MAX_REPORT_TEXT: usize = 160;
/// A target that is drained has to be gone for this long before its drain counts as one that can't
/// end: longer than a restart of its node takes.
pub const UNDRAINABLE_AFTER: Duration = Duration::from_secs(60);

/// Rest after files of lost groups were counted. A file that was begun when a target was there is
/// on record long before.
pub const LOST_REST: Duration = Duration::from_secs(15);

/// The rest lasts so many times as long as the count, if that is longer: all inodes are read.
pub const LOST_REST_TIMES: u64 = 20;

/// Resynchronisations that a heartbeat may tell of; a target is in some dozens of groups.
pub const MAX_RESYNCS: usize = 1024;

/// Clocks of a node and of management may differ by this many seconds: times of files come from
/// both.
pub const MAX_CLOCK_SKEW_S: u64 = 30;

/// A watch of the map is answered after this long even if nothing happened, so that free space
/// follows.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// Nodes of a cluster: every node and client gets the whole map with each change.
pub const MAX_NODES: usize = 1024;

/// Targets of a cluster, so that the map stays below a MiB as a rule: with its group each takes
/// some 260 bytes.
pub const MAX_TARGETS: usize = 2048;

/// Rules for clients: every request of a client that isn't remembered is compared with all of them.
pub const MAX_EXPORTS: usize = 256;

/// Addresses of a node.
pub const MAX_ADDRESSES: usize = 16;

/// Characters of the name of a node or a pool: a host name fits.
pub const MAX_NAME: usize = 64;

/// Targets of one node whose search for damage is told: a node has fewer.
pub(crate) const MAX_SCRUBS: usize = 1024;
