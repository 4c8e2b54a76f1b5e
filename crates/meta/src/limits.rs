//! Every limit of the service, with its unit and its reason.

use std::time::Duration;

/// Bytes of keys and values kept in memory, over all partitions. Some 80,000 inodes with their
/// entries.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// Parts of the cache with a lock each, so that cores seldom meet.
pub(crate) const CACHE_SHARDS: usize = 16;

/// Bytes of the largest value that is kept: inline content of the default limit, which an open
/// brings along, is.
pub(crate) const MAX_CACHED_VALUE: usize = 8 << 10;

/// Keys of settled commits that stay in a partition's overlay for commands that read a store
/// elsewhere, some 10 MiB. With more, what those commands have fetched is thrown away.
pub(crate) const KEPT_FOR_READINGS: usize = 64 << 10;

/// Pairs beyond those asked for that are fetched of a range, so that removals on their way don't
/// make it too short.
pub(crate) const SPARE_PAIRS: usize = 64;

/// Times that a command may stop to fetch what it misses: more than a path has directories, each of
/// which may need some.
pub(crate) const MAX_FETCHES: usize = 16 << 10;

/// Sessions that register at a time, at most; those of one remainder wait for each other.
pub(crate) const REGISTRATIONS_AT_ONCE: usize = 256;

/// Lanes of a session: of each the last answer is kept, some 200 bytes. A client needs one for each
/// change that is under way, and one for each that nobody answered within the last hour.
pub(crate) const MAX_LANES: u32 = 65_536;

/// Files of a session that comes back that are made at a time. They share commits.
pub(crate) const PROMISES_AT_ONCE: usize = 64;

/// Files whose sizes sessions tell when they come back, until these are settled: 64 MiB at most.
/// More than clients have open for writing at a time, as a rule.
pub(crate) const KNOWN_SIZES: usize = 1 << 20;

/// Ranges of names that sessions have to themselves, some 150 bytes each: in all directories, in
/// one, and of one session there.
pub(crate) const RANGES: usize = 64 << 10;
pub(crate) const RANGES_PER_DIRECTORY: usize = 4096;
pub(crate) const RANGES_PER_SESSION: usize = 128;

/// Such files of which the session may still ask what became of them, some 150 bytes each. It asks
/// at once.
pub(crate) const KEPT_PROMISES: usize = 64 << 10;

/// Records that are deleted by one commit when a session ends. The store takes some 12,000.
pub(crate) const RECORDS_PER_DELETION: usize = 1000;

/// Sessions at a time.
pub(crate) const MAX_SESSIONS: usize = 65_536;

/// How long a change that nobody synced may be lost to a crash of the machine: half of the second
/// that is promised, the other half being the disk's.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(500);

/// Deleted files whose chunks are removed at a time, and records read at a time by background work.
pub(crate) const BACKGROUND_BATCH: usize = 64;

/// Rest before chunks are deleted again that could not be deleted.
pub(crate) const REAP_RETRY: Duration = Duration::from_secs(10);

/// How often a change of chunks is made that is to be on disk, when targets are started anew
/// meanwhile.
pub(crate) const DURABLE_TRIES: usize = 3;

/// How often who puts a target right looks whether the end of a deletion is on record: that takes a
/// commit.
pub(crate) const OBLIVION_POLL: Duration = Duration::from_millis(5);

/// Parts of the lease table with a lock each, so that cores seldom meet.
pub(crate) const LEASE_SHARDS: usize = 64;

/// Leases and marks of use in a part: two million in all, some 450 MiB.
pub(crate) const LEASES_PER_SHARD: usize = (2 << 20) / LEASE_SHARDS;

/// Those of one session in a part: a quarter of all.
pub(crate) const SESSION_LEASES_PER_SHARD: usize = LEASES_PER_SHARD / 4;

/// Inodes that a session which comes back may say it has open: as many as it may have leases, since
/// its part of each shard holds those too. 8 MiB of numbers.
pub(crate) const OPENS_PER_SESSION: usize = SESSION_LEASES_PER_SHARD * LEASE_SHARDS;

/// Users of whom a session may have said their groups: processes that are at work at a time, as a
/// rule. With [`GROUPS_PER_CALLER`], 16 MiB a session at the most.
pub(crate) const CALLERS_PER_SESSION: usize = 1024;

/// Groups of a user. Linux allows 65,536; who has more than some hundred is rare.
pub(crate) const GROUPS_PER_CALLER: usize = 4096;

/// How long the record of a session that was ended against its will is kept. Its capabilities end
/// within minutes, targets refuse it for two hours, and a client that has heard of nobody for a day
/// (`client::recall`) ends its session by itself.
pub(crate) const KEEP_ENDED: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often records of ended sessions are looked through.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Recalls that one answer brings. As many bytes as a small message.
pub(crate) const RECALLS_PER_ANSWER: usize = 1024;

/// How long a session is kept waiting for recalls when there are none. A third of the time after
/// which it counts as lost.
pub(crate) const RECALL_POLL: Duration = Duration::from_secs(5);

/// How long a session that has seen a recall and goes on talking may take to answer it before it is
/// evicted.
pub(crate) const YIELD_TIME: Duration = Duration::from_secs(5);

/// A session that has not been heard of for so long while it should answer a recall is cut off
/// rather than obstinate: it says every second that it works on it.
pub(crate) const TALK_TIME: Duration = Duration::from_secs(3);

/// How long a session's word holds that it works on its recalls. It repeats it every second.
pub(crate) const YIELDING_WORD: Duration = YIELD_TIME;

/// How long a session that works on a recall may take while all targets are online: as long as a
/// client waits for a target, as a rule, so that one that has just died is noticed. While a target
/// is down there is no limit but the patience of those who wait: to end the session would settle
/// nothing, since the target can't be asked how long the files are either.
pub(crate) const YIELDING_TIME: Duration = Duration::from_secs(90);

/// How long a session may not be heard of before it is evicted for a lease in somebody's way.
pub(crate) const SILENCE_TIME: Duration = Duration::from_secs(15);

/// Rest of who waits for a session's answer in a service that stops.
pub(crate) const STOPPING_REST: Duration = Duration::from_millis(10);

/// A wait that takes so much longer than it should means that the process stood still meanwhile,
/// and not those that it waits for.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(2);

/// How long a session may not be heard of before it is ended, in nobody's way.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(60);

/// How long a target may fail to take the end of a session before others go on without it. It is
/// down then, as a rule.
pub(crate) const FENCE_TIME: Duration = Duration::from_secs(15);

/// Rest before a target is told again.
pub(crate) const FENCE_RETRY: Duration = Duration::from_secs(1);

/// How long sessions from before a start may take to come back, and once more from when the service
/// first hears of one. As long as one may be silent while it is in somebody's way.
pub(crate) const GRACE_TIME: Duration = SILENCE_TIME;

/// How often it is looked whether that time is over, and then, whether sessions that were just
/// coming back have done so.
pub(crate) const GRACE_LOOK: Duration = Duration::from_secs(1);

/// How often silent sessions are looked for.
pub(crate) const IDLE_CHECK: Duration = Duration::from_secs(5);

/// That a session was heard of is noted no more often than this, so that its cores don't fight for
/// the note.
pub(crate) const HEARD_GRAIN: Duration = Duration::from_millis(100);

/// How long a partition may be lent. A command that borrows takes milliseconds; others wait
/// meanwhile, among them sessions that have something to report before they can answer a recall: so
/// it is less than [`YIELD_TIME`].
pub(crate) const LOAN_TIME: Duration = Duration::from_secs(4);

/// How long a loan is waited for: less than the borrower waits for the answer.
pub(crate) const PARK_TIME: Duration = Duration::from_secs(2);

/// How long the answer to a wish to borrow is waited for. The partitions that an errand has
/// meanwhile are shut for everybody else.
pub(crate) const BORROW_TIME: Duration = Duration::from_secs(3);

/// How long another service may take to have leases recalled: those who don't answer are evicted
/// there in this time.
pub(crate) const MAKE_WAY_TIME: Duration = Duration::from_secs(60);

/// Rest before an errand tries again to get its partitions.
pub(crate) const ERRAND_REST: Duration = Duration::from_millis(20);

/// How long an errand tries. Its client asks again, until its own time-out.
pub(crate) const ERRAND_TIME: Duration = Duration::from_secs(15);

/// How often the map is looked at for partitions that come and go.
pub(crate) const ASSIGNMENT_POLL: Duration = Duration::from_millis(50);

/// Rest before work is tried again that the store or a target has refused.
pub(crate) const RETRY_TIME: Duration = Duration::from_secs(1);

/// How long a mirrored group may be without a primary that answers before work on its files is put
/// off: longer than it takes to replace one that has died, as long as a call to a node may take.
pub(crate) const GROUP_PATIENCE: Duration = Duration::from_secs(20);

/// Files that are settled at a time, at most; those of one remainder wait for each other.
pub(crate) const SETTLE_TURNS: usize = 64;

/// How long another service has to take note of the end of a session. It finds out by itself, too.
pub(crate) const TELL_TIME: Duration = Duration::from_secs(5);

/// How often it is looked whether a target is to be drained.
pub(crate) const DRAIN_POLL: Duration = Duration::from_secs(1);

/// Rest before files are moved again that could not be.
pub(crate) const DRAIN_RETRY: Duration = Duration::from_secs(5);

/// How often a target that was emptied is looked at again: a file that was begun when it was still
/// there for new ones may come late.
pub(crate) const DRAIN_IDLE: Duration = Duration::from_secs(60);

/// Files that move at a time. With [`COPIES_AT_ONCE`] some MiB are on their way then: enough to
/// fill a network, without crowding out clients.
pub(crate) const MOVES_AT_ONCE: usize = 4;

/// Regions of one file that are copied at a time.
pub(crate) const COPIES_AT_ONCE: usize = 4;

/// Rounds in which what changes meanwhile is copied again before everybody has to wait.
pub(crate) const MAX_ROUNDS: usize = 8;

/// Regions that are copied while everybody waits: 64 MiB, well under a second.
pub(crate) const LAST_REGIONS: u64 = 64;

/// The same of a file that changes faster than it is copied, after several attempts: 1 GiB, some
/// seconds.
pub(crate) const MOST_LAST_REGIONS: u64 = 1024;

/// How long all of that may take altogether: a target may fall silent meanwhile, and who waits for
/// the file gives up after a time of its own (60 s unless said otherwise).
pub(crate) const ALONE_TIME: Duration = Duration::from_secs(20);

/// Files at a time that move to another scheme or pool, beside those that move off targets. As
/// [`MOVES_AT_ONCE`].
pub(crate) const MIGRATIONS_AT_ONCE: usize = 4;

/// How often it is looked for files that are on their way and nobody moves.
pub(crate) const MIGRATE_POLL: Duration = Duration::from_secs(1);

/// Rest before a file is moved again that could not be; it doubles up to [`MIGRATE_LONGEST_RETRY`].
pub(crate) const MIGRATE_RETRY: Duration = Duration::from_millis(200);

/// The longest such rest.
pub(crate) const MIGRATE_LONGEST_RETRY: Duration = Duration::from_secs(5);

/// How long a file may get on with nothing before it is left where it is: longer than the restart
/// of a machine takes.
pub(crate) const MIGRATE_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The same for errors that mostly stay: a damaged block, no room. Attempts.
pub(crate) const MIGRATE_TRIES: u32 = 4;

/// Files of which it is kept in mind why they were given up; beyond it the oldest is forgotten.
/// Some 300 bytes each.
pub(crate) const MAX_GIVEN_UP: usize = 4096;

/// Files that wait for their turn or are on their way; beyond it nobody may ask for more at once.
/// Some 200 bytes each.
pub(crate) const MAX_MIGRATIONS: usize = 65_536;

/// How often the mover asks for the lease of a file that others keep taking.
pub(crate) const LEASE_TRIES: usize = 100;

/// How long the map of this process is waited for once management has made groups: a push of the
/// map takes a moment.
pub const GROUPS_PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked whether it has come.
pub const GROUPS_POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::MAX_CACHED_VALUE;
    use types::StripePattern;

    #[test]
    fn inline_content_of_the_default_limit_is_cached() {
        let largest = StripePattern::default().inline_limit as usize;
        assert!(largest + 64 <= MAX_CACHED_VALUE, "{largest} bytes and what surrounds them");
    }
}
