//! Capabilities, which this session presents to storage services: the metadata service's signed
//! statement that the session may access a file.
//!
//! They come with the answers that grant access to a file, and expire by themselves. A capability
//! with less than half its time left is renewed concurrently with its use; one that has expired or
//! was dropped, before the use. They don't permit caching: leases do.

use crate::session::Session;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Attr, ChunkFileId, Error, HashMap, HashSet, InodeId, Refusal, Result};
use wire::spec::Right;
use wire::{Capability, MetaOp, MetaReply, StorageOp};

/// Shards of the table; a power of two, many more than cores.
const SHARDS: usize = 64;

/// Maximum number of capabilities in a shard: 64 Ki files in total, some 8 MiB. A dropped one is
/// requested again.
const PER_SHARD: usize = 1024;

/// Remaining time, in seconds, below which the client treats a capability as expired. A request
/// takes time to arrive, and nodes get the cluster's time with heartbeats, which may be late.
const SLACK_S: u64 = 35;

/// A request that took this long may have waited for unavailable services until its capability
/// expired.
const LATE_NS: u64 = 1_000_000_000;

/// How long a request is repeated if its renewed capability is refused, too: nodes get the
/// cluster's time one after the other, each with a heartbeat. And the pause between two attempts.
const EXPIRED_RETRY_NS: u64 = 5_000_000_000;
const EXPIRED_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Decides whether a request is repeated because its capability was refused as expired.
#[derive(Default)]
pub(crate) struct ExpiredRetries {
    since_ns: Option<u64>,
}

impl ExpiredRetries {
    /// Whether the request, sent at `sent_ns`, is to be repeated with another capability. Pauses
    /// first, except the first time.
    pub(crate) async fn may_repeat(&mut self, sent_ns: u64) -> bool {
        let now_ns = rt::monotonic_ns();
        match self.since_ns {
            Some(since_ns) if now_ns.saturating_sub(sent_ns) <= LATE_NS => {
                rt::sleep(EXPIRED_RETRY_PAUSE).await;
                now_ns.saturating_sub(since_ns) <= EXPIRED_RETRY_NS
            }
            _ => {
                self.since_ns = Some(now_ns);
                true
            }
        }
    }
}

/// The capabilities of a session.
pub(crate) struct Capabilities {
    shards: Vec<RwLock<HashMap<InodeId, StoredCapability>>>,
    /// The service issues capabilities. A service that doesn't is never asked for them.
    is_issued: AtomicBool,
    /// Files whose renewal is in flight. Bounded by the requests in flight.
    renewing: Mutex<HashSet<InodeId>>,
}

#[derive(Clone, Copy)]
struct StoredCapability {
    capability: Capability,
    /// When it is to be renewed and when it has expired, in seconds of this machine's monotonic
    /// clock: the time of day of this or another machine may be wrong.
    renew_s: u64,
    ends_s: u64,
}

/// The capability that is available for a request.
enum Found {
    Valid(Capability),
    /// Valid, but for less than half its time.
    ExpiresSoon(Capability),
    None,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            is_issued: AtomicBool::new(false),
            renewing: Mutex::default(),
        }
    }
}

impl Capabilities {
    /// Stores the capability of an answer.
    pub(crate) fn store(&self, op: &MetaOp, reply: &MetaReply, capability: Capability) {
        let Some(ino) = file_of(op, reply) else { return };
        let left_s = capability.valid_s();
        let now_s = now_s();
        let held = StoredCapability {
            capability,
            renew_s: now_s + left_s / 2,
            // Short ones, which only tests use, keep a part of their time.
            ends_s: now_s + left_s.saturating_sub(SLACK_S).max(left_s / 4),
        };
        let mut shard = self.shard(ino).write();
        if shard.len() >= PER_SHARD && !shard.contains_key(&ino) {
            shard.retain(|_, held| held.ends_s > now_s);
            if shard.len() >= PER_SHARD {
                shard.clear();
            }
        }
        match shard.get_mut(&ino) {
            // Answers arrive in any order. A capability to write remains if the file is also opened
            // for reading.
            Some(known)
                if known.ends_s > now_s
                    && (known.capability.epoch(), known.capability.may_write())
                        > (capability.epoch(), capability.may_write()) => {}
            Some(known) => *known = held,
            None => _ = shard.insert(ino, held),
        }
        self.is_issued.store(true, Ordering::Release);
    }

    fn find(&self, ino: InodeId, writes: bool) -> Found {
        let held = self.shard(ino).read().get(&ino).copied();
        let now_s = now_s();
        match held {
            Some(held) if held.ends_s <= now_s || writes && !held.capability.may_write() => Found::None,
            Some(held) if held.renew_s <= now_s => Found::ExpiresSoon(held.capability),
            Some(held) => Found::Valid(held.capability),
            None => Found::None,
        }
    }

    /// Whether a refused request is to be repeated with another capability: its capability expired
    /// on the way, or the key was changed.
    pub(crate) fn drop_if_stale(&self, name: ChunkFileId, error: &Error) -> bool {
        let is_stale = error.errno == Refusal::ExpiredCapability;
        if is_stale {
            self.forget(name.owner());
        }
        is_stale
    }

    fn is_readable(&self, ino: InodeId) -> bool {
        matches!(self.find(ino, false), Found::Valid(_) | Found::ExpiresSoon(_))
    }

    fn forget(&self, ino: InodeId) {
        self.shard(ino).write().remove(&ino);
    }

    fn shard(&self, ino: InodeId) -> &RwLock<HashMap<InodeId, StoredCapability>> {
        // The low bits of sequential inode numbers.
        &self.shards[ino.0 as usize % SHARDS]
    }
}

impl Session {
    /// Returns the capability for a request about the chunk file `name`; `None` if the service
    /// issues none.
    pub(crate) async fn capability(&self, name: ChunkFileId, op: &StorageOp) -> Result<Option<Capability>> {
        let ino = name.owner();
        if !self.capabilities.is_issued.load(Ordering::Acquire) {
            return Ok(None);
        }
        let writes = match op.spec().right {
            None => return Ok(None),
            Some(right) => right == Right::Write,
        };
        match self.capabilities.find(ino, writes) {
            Found::Valid(capability) => Ok(Some(capability)),
            Found::ExpiresSoon(capability) => {
                self.renew_in_background(ino);
                Ok(Some(capability))
            }
            Found::None => {
                Box::pin(self.renew(ino)).await?;
                match self.capabilities.find(ino, writes) {
                    Found::Valid(capability) | Found::ExpiresSoon(capability) => Ok(Some(capability)),
                    // The `Write` lease is gone: the service has restarted, or its partition has
                    // moved.
                    Found::None if writes && self.capabilities.is_readable(ino) => Err(capability_ended(ino)),
                    // The storage service reports the problem.
                    Found::None => {
                        Ok(self.capabilities.shard(ino).read().get(&ino).map(|held| held.capability))
                    }
                }
            }
        }
    }

    async fn renew(&self, ino: InodeId) -> Result<()> {
        // Requests no lease: the caller may hold I/O locks, and the answer must not wait for this
        // session.
        self.query(MetaOp::Open { ino, requested_lease: None }).await?;
        self.leases.mark_open(ino);
        Ok(())
    }

    fn renew_in_background(&self, ino: InodeId) {
        let Some(session) = self.weak_self.upgrade() else { return };
        if !self.capabilities.renewing.lock().insert(ino) {
            return;
        }
        rt::spawn(async move {
            if let Err(error) = session.renew(ino).await {
                tracing::debug!(%ino, %error, "a capability could not be renewed yet");
            }
            session.capabilities.renewing.lock().remove(&ino);
        });
    }
}

/// Error of a write that was in flight when its lease ended; it is repeated under another lease.
fn capability_ended(ino: InodeId) -> Error {
    Error::new(Refusal::EndedLease, format!("the capability to write inode {ino} has ended with its lease"))
        .hint("repeat the write")
}

fn now_s() -> u64 {
    rt::monotonic_ns() / 1_000_000_000
}

/// Returns the file of an answer with a capability.
fn file_of(op: &MetaOp, reply: &MetaReply) -> Option<InodeId> {
    match (op, reply) {
        (MetaOp::Open { ino, .. } | MetaOp::Reopen { ino, .. }, _) => Some(*ino),
        (_, MetaReply::File(info)) => Some(info.attr.ino),
        (_, MetaReply::Created { attr: Attr { ino, .. }, .. } | MetaReply::Entry(Attr { ino, .. })) => {
            Some(*ino)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::sim::Machine;

    const INO: InodeId = InodeId(9);

    /// A capability to read and write.
    fn capability(valid_s: u16, expires_s: u64) -> Capability {
        let mut bytes = [0; wire::CAPABILITY_BYTES];
        bytes[1] = 3;
        bytes[2..4].copy_from_slice(&valid_s.to_le_bytes());
        bytes[32..40].copy_from_slice(&expires_s.to_le_bytes());
        Capability(bytes)
    }

    /// It expires by the cluster's time, which no client knows.
    #[test]
    fn a_capability_lasts_for_its_validity_regardless_of_the_clock() {
        let run = async {
            let kept = |capability| {
                let capabilities = Capabilities::default();
                capabilities.store(
                    &MetaOp::Open { ino: INO, requested_lease: None },
                    &MetaReply::Unit,
                    capability,
                );
                capabilities.find(INO, true)
            };
            for expires_s in [0, rt::now().secs as u64, u64::MAX] {
                assert!(matches!(kept(capability(600, expires_s)), Found::Valid(_)), "{expires_s}");
            }
            assert!(matches!(kept(capability(0, u64::MAX)), Found::None));
        };
        Machine::new(1).run(run).unwrap();
    }

    /// Nodes get the cluster's time one after the other.
    #[test]
    fn a_request_is_repeated_until_nodes_have_the_cluster_time() {
        let run = async {
            let (mut stale, began_ns, mut sent) = (ExpiredRetries::default(), rt::monotonic_ns(), 0);
            while stale.may_repeat(rt::monotonic_ns()).await {
                sent += 1;
            }
            let lasted_ns = rt::monotonic_ns() - began_ns;
            assert!((EXPIRED_RETRY_NS..2 * EXPIRED_RETRY_NS).contains(&lasted_ns), "{lasted_ns}");
            assert!(sent > 10, "{sent}");
            // A request that has waited for services gets another attempt.
            let sent_ns = rt::monotonic_ns();
            rt::sleep(Duration::from_nanos(2 * LATE_NS)).await;
            assert!(stale.may_repeat(sent_ns).await);
        };
        Machine::new(1).run(run).unwrap();
    }
}
