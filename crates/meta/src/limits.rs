//! Every limit of the service, with its unit and its reason.

use std::time::Duration;

/// Bytes of cached keys and values, over all partitions: about 80,000 inodes with their entries.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// Shards of the cache, each with a mutex, so that cores seldom contend.
pub(crate) const CACHE_SHARDS: usize = 16;

/// Bytes of the largest cached value. It covers inline content up to the limit of new file systems,
/// which an open returns.
pub(crate) const MAX_CACHED_VALUE: usize = 20 << 10;

/// Keys of completed commits that stay in a partition's overlay for commands that read a remote
/// store, about 10 MiB. Beyond that, the data that those commands have fetched is discarded.
pub(crate) const MAX_RETAINED_KEYS: usize = 64 << 10;

/// Extra pairs that are fetched of a range, so that removals under way don't make it too short.
pub(crate) const SPARE_PAIRS: usize = 64;

/// Fetches of one command, at most: more than a path has directories, each of which may need
/// several.
pub(crate) const MAX_FETCHES: usize = 16 << 10;

/// Sessions that may register at the same time; those with the same remainder wait for each other.
pub(crate) const MAX_CONCURRENT_REGISTRATIONS: usize = 256;

/// Slots of a session: for each the last answer is kept, about 200 bytes. A client needs one for
/// each change under way, and one for each that got no answer within the last hour.
pub(crate) const MAX_SESSION_SLOTS: u32 = 65_536;

/// Asynchronous creates of a returning session that are executed at a time. They share commits.
pub(crate) const CREATES_AT_ONCE: usize = 64;

/// File sizes that returning sessions have reported, until size recovery uses them: at most 64 MiB.
/// Usually more than clients have open for writing at a time.
pub(crate) const MAX_REPORTED_SIZES: usize = 1 << 20;

/// Name-prefix delegations, about 170 bytes each: in all directories, in one, and of one session in
/// one.
pub(crate) const MAX_NAME_DELEGATIONS: usize = 64 << 10;
pub(crate) const NAME_DELEGATIONS_PER_DIRECTORY: usize = 4096;
pub(crate) const NAME_DELEGATIONS_PER_SESSION: usize = 128;

/// Files from asynchronous creates whose outcome the session may still ask for, about 150 bytes
/// each. It asks at once.
pub(crate) const MAX_REPLAYED_CREATES: usize = 64 << 10;

/// Records that one commit deletes when a session ends. The store accepts about 12,000.
pub(crate) const RECORDS_PER_DELETION: usize = 1000;

/// Sessions at a time.
pub(crate) const MAX_SESSIONS: usize = 65_536;

/// Longest time that an unsynced change may be lost to a crash of the machine: half of the
/// documented second. The other half is for the disk.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(500);

/// Deleted files whose chunk files are removed at a time, and records that background work reads at
/// a time.
pub(crate) const BACKGROUND_BATCH: usize = 64;

/// Deleted files whose chunk files are removed concurrently.
pub(crate) const CONCURRENT_DELETIONS: usize = 16;

/// Pause before the deletion of chunk files is tried again.
pub(crate) const REAP_RETRY: Duration = Duration::from_secs(10);

/// Attempts to make a change of chunk files durable while targets restart.
pub(crate) const DURABLE_TRIES: usize = 3;

/// How often crash reconciliation checks whether the end of a deletion is committed: that takes a
/// commit.
pub(crate) const DELETION_COMMIT_POLL: Duration = Duration::from_millis(5);

/// Shards of the lease table, each with a mutex, so that cores seldom contend.
pub(crate) const LEASE_SHARDS: usize = 64;

/// Leases and uses in a shard: two million in all, about 450 MiB.
pub(crate) const LEASES_PER_SHARD: usize = (2 << 20) / LEASE_SHARDS;

/// Those of one session in a shard: a quarter of all.
pub(crate) const SESSION_LEASES_PER_SHARD: usize = LEASES_PER_SHARD / 4;

/// Inodes that a returning session may report as open: as many as it may have leases, since its
/// share of each shard holds those, too. 8 MiB of numbers.
pub(crate) const OPENS_PER_SESSION: usize = SESSION_LEASES_PER_SHARD * LEASE_SHARDS;

/// Users of a session whose groups are known: usually as many as have active processes. With
/// [`GROUPS_PER_USER`], at most 16 MiB a session.
pub(crate) const USERS_PER_SESSION: usize = 1024;

/// Groups of a user. Linux allows 65,536; more than a few hundred are rare.
pub(crate) const GROUPS_PER_USER: usize = 4096;

/// How long the record of an evicted session is kept. Its capabilities end within minutes, targets
/// refuse it for two hours, and a client that has reached no service for a day
/// (`client::session::recall`) ends its session by itself.
pub(crate) const TOMBSTONE_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often old records of evicted sessions are searched for.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Recalls in one answer, about as many bytes as a small message.
pub(crate) const RECALLS_PER_ANSWER: usize = 1024;

/// How long a session's request for recalls waits if there are none. A third of the time after
/// which the session counts as unreachable.
pub(crate) const RECALL_POLL: Duration = Duration::from_secs(5);

/// How long a session that has seen a recall and keeps sending may take to acknowledge it, before
/// it is evicted.
pub(crate) const RECALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A session that is silent for so long while it should acknowledge a recall is considered cut off,
/// not unwilling: a working session reports every second that it works on the recall.
pub(crate) const CUT_OFF_AFTER: Duration = Duration::from_secs(3);

/// How long a session's report is valid that it works on its recalls. It repeats the report every
/// second.
pub(crate) const WORKING_REPORT_VALID: Duration = RECALL_TIMEOUT;

/// How long a session that works on a recall may take while all targets are online. That is usually
/// as long as a client waits for a target, so that the failure of one that has just died is
/// noticed. While a target is down there is no limit except the time-outs of those that wait. An
/// eviction would not help: size recovery can't ask the target either.
pub(crate) const RECALL_WORK_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a session may be unreachable before it is evicted for a conflicting lease.
pub(crate) const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause of a wait for an acknowledgement in a service that stops.
pub(crate) const STOPPING_PAUSE: Duration = Duration::from_millis(10);

/// If a wait takes so much longer than planned, this process was paused meanwhile, and not the
/// sessions that it waits for.
pub(crate) const PAUSE_THRESHOLD: Duration = Duration::from_secs(2);

/// How long a session may be unreachable before it is evicted, even if none of its leases conflict.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a target may fail to fence a session before others continue without it. Usually it is
/// down then.
pub(crate) const FENCE_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause before a target is asked again to fence a session.
pub(crate) const FENCE_RETRY: Duration = Duration::from_secs(1);

/// How long sessions from before a start may take to return, and again from the first message of
/// one. As long as a session with a conflicting lease may be silent.
pub(crate) const GRACE_PERIOD: Duration = UNREACHABLE_TIMEOUT;

/// How often the end of that time is checked, and then, whether sessions that were returning have
/// done so.
pub(crate) const GRACE_POLL: Duration = Duration::from_secs(1);

/// How often silent sessions are searched for.
pub(crate) const IDLE_CHECK: Duration = Duration::from_secs(5);

/// Shortest interval between updates of a session's last contact, so that cores don't contend for
/// it.
pub(crate) const CONTACT_INTERVAL: Duration = Duration::from_millis(100);

/// How long a partition lock may be held. A transaction takes milliseconds. Others wait meanwhile,
/// among them sessions that have to flush before they can acknowledge a recall: so it is less than
/// [`RECALL_TIMEOUT`].
pub(crate) const PARTITION_LOCK_TIMEOUT: Duration = Duration::from_secs(4);

/// How long an owner tries to lock a partition: less than the coordinator waits for the answer.
pub(crate) const PARTITION_LOCK_WAIT: Duration = Duration::from_secs(2);

/// How long a coordinator waits for the answer to a lock request. No other command runs meanwhile
/// on the partitions that it has locked.
pub(crate) const REMOTE_LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// How long another service may take to have leases recalled: it evicts unresponsive sessions
/// within this time.
pub(crate) const REMOTE_RECALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before a transaction tries again to lock its partitions.
pub(crate) const CROSS_PARTITION_BACKOFF: Duration = Duration::from_millis(20);

/// How long a transaction is tried. Its client asks again, until its own time-out.
pub(crate) const CROSS_PARTITION_TIMEOUT: Duration = Duration::from_secs(15);

/// How often the cluster map is checked for partitions to adopt or release.
pub(crate) const ASSIGNMENT_POLL: Duration = Duration::from_millis(50);

/// Pause before work is tried again that the store or a target has refused.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long a mirrored group may have no responding primary before work on its files is deferred:
/// longer than the replacement of a dead one takes, and as long as a call to a node may take.
pub(crate) const PRIMARY_TIMEOUT: Duration = Duration::from_secs(20);

/// Files in size recovery at a time, at most; those with the same remainder wait for each other.
pub(crate) const SIZE_RECOVERY_LOCKS: usize = 64;

/// How long another service may take to answer the notice of a session's end. It also finds out by
/// itself.
pub(crate) const END_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the map is checked for targets to drain.
pub(crate) const DRAIN_POLL: Duration = Duration::from_secs(1);

/// Pause before failed migrations are tried again.
pub(crate) const DRAIN_RETRY: Duration = Duration::from_secs(5);

/// How often an emptied target is checked again: a file whose creation began while the target was
/// still in use may appear late.
pub(crate) const DRAIN_IDLE: Duration = Duration::from_secs(60);

/// Files that migrate at a time. With [`COPIES_AT_ONCE`], some MiB are in flight then: enough to
/// fill a network, without starving clients.
pub(crate) const MOVES_AT_ONCE: usize = 4;

/// Regions of one file that are copied at a time.
pub(crate) const COPIES_AT_ONCE: usize = 4;

/// Rounds in which changed regions are copied again before clients have to wait.
pub(crate) const MAX_ROUNDS: usize = 8;

/// Regions that are copied while clients wait: 64 MiB, well under a second.
pub(crate) const MAX_FINAL_REGIONS: u64 = 64;

/// The same for a file that changes faster than it is copied, after several attempts: 1 GiB, some
/// seconds.
pub(crate) const MAX_FINAL_REGIONS_BUSY: u64 = 1024;

/// How long clients may wait in total: a target may stop responding meanwhile, and applications
/// that wait for the file have their own time-out (60 s by default).
pub(crate) const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Files at a time that migrate to another scheme or pool, beside those that are moved off targets.
/// As [`MOVES_AT_ONCE`].
pub(crate) const MIGRATIONS_AT_ONCE: usize = 4;

/// How often files are searched for whose migration is recorded, but isn't running.
pub(crate) const MIGRATE_POLL: Duration = Duration::from_secs(1);

/// Pause before a failed migration is tried again; it doubles up to [`MIGRATE_MAX_RETRY`].
pub(crate) const MIGRATE_RETRY: Duration = Duration::from_millis(200);

/// The longest such pause.
pub(crate) const MIGRATE_MAX_RETRY: Duration = Duration::from_secs(5);

/// How long a migration may make no progress before it is given up: longer than the restart of a
/// machine takes.
pub(crate) const MIGRATE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The same in attempts, for errors that usually persist: a damaged block, no space.
pub(crate) const MIGRATE_TRIES: u32 = 4;

/// Failed migrations whose reason is remembered; beyond that the oldest is dropped. About 300 bytes
/// each.
pub(crate) const MAX_GIVEN_UP: usize = 4096;

/// Migrations that are queued or running; beyond that new ones are refused. About 200 bytes each.
pub(crate) const MAX_MIGRATIONS: usize = 65_536;

/// How often the migrator asks for the lease of a file that other sessions keep acquiring.
pub(crate) const LEASE_TRIES: usize = 100;

/// How long a service waits for its cluster map to show new groups: a push of the map takes a
/// moment.
pub const GROUPS_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::MAX_CACHED_VALUE;
    use types::StripePattern;

    #[test]
    fn inline_content_of_the_default_limit_is_cached() {
        let largest = StripePattern::of_new_root().inline_limit as usize;
        assert!(largest + 64 <= MAX_CACHED_VALUE, "{largest} bytes and what surrounds them");
    }
}
