//! Dispatch of requests to the stores.

use crate::capability_check::CapabilityCheck;
use crate::convert;
use crate::counters::{Counters, TargetCounters};
use crate::dirty_tracking::DirtyTrackers;
use crate::drc::DuplicateRequestCache;
use crate::evicted_sessions::EvictedSessions;
use crate::group::{self, GroupService};
use crate::lease_epochs::LeaseEpochs;
use crate::measure::Measurements;
use crate::scheme::single;
use crate::scrub::Scrubs;
use crate::serving_lease::ServingLease;
use crate::session_fences::Fences;
use chunkstore::{At, Store, StoreError};
use identity::CapabilityRing;
use net::{Caller, Deadline, Exports, Handler, LocalFuture};
use rt::IoBuf;
use rt::sync::Event;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use types::{ByteRange, ChunkFileId, ClusterMap, Errno, Error, ExportAccess, Result, SessionId, TargetId};
use wire::spec::{Payload, Scope};
use wire::{MAX_GAPS, MAX_REGIONS, RegionSelection, StorageOp, StorageReply, StorageRequest};

/// Limit of targets that one process serves: each keeps files open and checksums in memory.
pub const MAX_TARGETS: usize = 64;

/// How long a request waits for the lease or for crash reconciliation: less than a client's usual
/// time-out, so that the client learns the reason.
const WAIT_TIMEOUT: Duration = Duration::from_secs(45);

/// A served target.
pub(crate) struct Served {
    pub(crate) store: Arc<Store>,
    /// Whether the target is open to clients, and the event for requests that arrived before. Every
    /// request reads the flag, without a lock.
    is_open: AtomicBool,
    opened: Event,
    /// The duplicate request cache.
    pub(crate) drc: DuplicateRequestCache,
    /// The lease epochs, which refuse requests under leases that have ended.
    pub(crate) lease_epochs: LeaseEpochs,
    evicted: EvictedSessions,
    pub(crate) counters: Arc<TargetCounters>,
}

/// Answers storage requests for a set of targets.
pub struct StorageService {
    /// Filled from the front and never emptied, so that lookups need no lock.
    targets: Box<[OnceLock<Served>]>,
    /// Held while a target is added.
    add_lock: Mutex<()>,
    /// Set when all targets that a start finds have been added: after that, an absent one is not
    /// served here.
    targets_complete: Event,
    pub(crate) lease: Arc<ServingLease>,
    pub(crate) fences: Arc<Fences>,
    /// Checks the capabilities of requests from other processes; no checks if unset.
    capability_check: OnceLock<CapabilityCheck>,
    /// Export rules for client networks.
    exports: Exports,
    pub(crate) dirty_trackers: Arc<DirtyTrackers>,
    /// The redundancy groups of the targets; none are served if unset.
    pub(crate) groups: OnceLock<Arc<GroupService>>,
    pub(crate) scrubs: Scrubs,
    pub(crate) measurements: Measurements,
}

impl StorageService {
    /// Creates a service for these stores. Each must be the only one of its target.
    pub fn new(stores: impl IntoIterator<Item = Arc<Store>>) -> StorageService {
        let service = StorageService::under_lease(Arc::new(ServingLease::forever()));
        for store in stores {
            let target = store.target();
            service.add(store).expect("a process gets no more targets than the limit");
            service.open_to_clients(target);
        }
        service.set_targets_complete();
        service
    }

    /// Creates a service without targets that changes data only while the lease is valid. Requests
    /// for absent targets wait until [`StorageService::set_targets_complete`].
    pub fn under_lease(lease: Arc<ServingLease>) -> StorageService {
        StorageService {
            targets: (0..MAX_TARGETS).map(|_| OnceLock::new()).collect(),
            add_lock: Mutex::default(),
            targets_complete: Event::new(),
            lease,
            fences: Arc::default(),
            capability_check: OnceLock::new(),
            exports: Exports::default(),
            dirty_trackers: Arc::default(),
            groups: OnceLock::new(),
            scrubs: Scrubs::default(),
            measurements: Measurements::default(),
        }
    }

    /// Demands capabilities of clients from now on.
    pub fn require_capabilities(&self, ring: Arc<CapabilityRing>) {
        // The first ring stays; later calls change nothing.
        self.capability_check.get_or_init(|| CapabilityCheck::new(ring));
    }

    /// Applies the map's export rules from now on.
    pub fn set_exports(&self, map: &ClusterMap) {
        self.exports.apply_map(map);
    }

    /// Refuses what the export rules for a client's network don't allow. The metadata service does
    /// the same, but the capabilities that it issued before a rule changed are valid for some
    /// minutes.
    fn check_export(&self, caller: &Caller, request: &StorageRequest) -> Result<()> {
        // A request without a session acts for the cluster; the transport has checked its sender.
        if request.session == SessionId(0) || group::is_from_primary(request) {
            return Ok(());
        }
        let hint = "weft export list, on a node, shows the rules for clients and networks";
        match self.exports.of(caller).access {
            ExportAccess::Ro if request.op.spec().is_change() => {
                let message = "the file system is read-only for this client's network";
                Err(Error::new(Errno::EROFS, message).hint(hint))
            }
            ExportAccess::None => {
                let message = format!("{} at {} may not use this file system", caller.name, caller.address);
                Err(Error::new(Errno::EACCES, message).hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Serves one more target, at first only for other services (session 0): crash reconciliation
    /// must end before clients see the target.
    pub fn add(&self, store: Arc<Store>) -> Result<()> {
        let _exclusive = self.add_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let target = store.target();
        if self.find(target).is_some() {
            let place = store.dir().display();
            return Err(Error::new(
                Errno::EEXIST,
                format!("{place} holds target {target}, which is served already"),
            )
            .hint("it is a copy of that target's directory: use an empty one"));
        }
        let Some(slot) = self.targets.iter().find(|slot| slot.get().is_none()) else {
            let message = format!("this node serves {MAX_TARGETS} targets, which is the limit");
            return Err(
                Error::new(Errno::ENOSPC, message).hint(format!("serve target {target} from another node"))
            );
        };
        let (evicted, sessions) = EvictedSessions::load(&store);
        sessions.into_iter().for_each(|session| self.fences.refuse(session));
        slot.get_or_init(|| Served {
            counters: Arc::default(),
            is_open: AtomicBool::new(false),
            opened: Event::new(),
            drc: DuplicateRequestCache::load(&store, |session| self.fences.is_fenced(session)),
            evicted,
            lease_epochs: LeaseEpochs::default(),
            store,
        });
        Ok(())
    }

    /// Reports that all targets that a start finds have been added.
    pub fn set_targets_complete(&self) {
        self.targets_complete.set();
    }

    /// Opens a target to clients.
    pub fn open_to_clients(&self, target: TargetId) {
        if let Some(served) = self.find(target) {
            served.drc.set_open();
            served.is_open.store(true, Ordering::Release);
            served.opened.set();
        }
    }

    pub(crate) fn find(&self, target: TargetId) -> Option<&Served> {
        self.served().find(|served| served.store.target() == target)
    }

    pub(crate) fn served(&self) -> impl Iterator<Item = &Served> {
        self.targets.iter().map_while(OnceLock::get)
    }

    /// Returns the served stores, by target.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.served().map(|served| &served.store)
    }

    /// Returns the counters of a target; `None` for one that isn't served here.
    pub fn counters(&self, target: TargetId) -> Option<Counters> {
        Some(self.find(target)?.counters.counters())
    }

    async fn answer(
        &self,
        request: StorageRequest,
        deadline: Deadline,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        match request.op {
            StorageOp::Traffic => return Ok(StorageReply::Unit),
            StorageOp::Measure { what, milliseconds } => {
                let duration = Duration::from_millis(milliseconds);
                return Box::pin(self.measure(request.target, what, duration)).await;
            }
            _ => {}
        }
        let served = match self.find(request.target) {
            Some(served) => served,
            None => Box::pin(self.await_target(request.target)).await?,
        };
        served.counters.count_request();
        if served.is_offline()
            && let Some(refusal) = Box::pin(self.offline_error(served, &request)).await
        {
            return Err(refusal);
        }
        if request.session != SessionId(0)
            && let Some(groups) = self.groups.get()
        {
            groups.client_activity.record_request(rt::monotonic_ns());
        }
        if let Some(context) = request.group {
            return Box::pin(self.handle_group_request(served, context, request, deadline, payload)).await;
        }
        if let StorageOp::Regions { from, which: RegionSelection::All } = request.op {
            let listed =
                Box::pin(served.store.files(from, MAX_REGIONS)).await.map_err(|e| served.failed(&e))?;
            let whole = |ino| (ino, ByteRange::new(0, u64::MAX));
            let regions = listed.0.into_iter().map(whole).collect();
            return Ok(StorageReply::Regions { regions, next: listed.1 });
        }
        let spec = request.op.spec();
        if spec.scope == Scope::GroupWithMembers {
            return Err(Error::new(Errno::EINVAL, "only members of mirrored groups support this request"));
        }
        if let StorageOp::Fence { session } = request.op {
            return Box::pin(self.fence(served, session)).await;
        }
        // Before the request counts as running: a fence doesn't wait for requests that wait here.
        let is_service =
            request.session == SessionId(0) && !matches!(request.op, StorageOp::TrackDirty { .. });
        if !is_service {
            if !served.is_open.load(Ordering::Acquire) {
                Box::pin(served.wait_until_open()).await?;
            }
            if request.session != SessionId(0) && served.drc.has_closed_files() {
                let rows = served.store.drc_rows();
                Box::pin(served.drc.wait_until_open(
                    rows,
                    request.session,
                    request.ino,
                    request.slot_sequence,
                ))
                .await?;
            }
        }
        if let Some(answer) = self.dirty_trackers.answer(&request) {
            return answer;
        }
        if spec.is_change() && !self.lease.is_valid(rt::monotonic_ns()) {
            self.lease.wait(request.target).await?;
        }
        // A write that executes after its application got an error could overwrite what the
        // application wrote then.
        if deadline.has_passed() {
            return Err(deadline.error());
        }
        let _running = self.fences.enter(request.session)?;
        if spec.payload != Payload::Optional && payload.is_none() {
            return Err(Error::new(Errno::EINVAL, "a read or write came without its payload"));
        }
        let _dirty_guard = self.dirty_trackers.track(&request, payload.as_ref().map_or(0, IoBuf::len));
        if request.op == StorageOp::SyncTarget {
            Box::pin(self.sync_replicas(request.target)).await?;
        }
        single::execute(served, &request, payload).await
    }

    /// Ends a session here, for all targets. A record on one of them is enough for all to know it
    /// after a restart.
    async fn fence(&self, served: &Served, session: SessionId) -> Result<StorageReply> {
        self.fences.fence(session).await;
        if let Some(other) = served.evicted.record(&served.store, session, rt::now().secs).await? {
            self.fences.lift(other);
        }
        self.served().for_each(|served| served.drc.drop_session(session));
        self.replicas().iter().for_each(|replica| replica.drc.drop_session(session));
        Ok(StorageReply::Unit)
    }
}

impl StorageService {
    /// Waits for an absent target, in case the start that is under way adds it.
    #[cold]
    async fn await_target(&self, target: TargetId) -> Result<&Served> {
        let started = rt::timeout(WAIT_TIMEOUT, self.targets_complete.wait()).await.is_some();
        self.find(target).ok_or_else(|| {
            let message = match started {
                true => format!("target {target} is not served here"),
                false => format!("target {target} is not served yet: its node is still starting"),
            };
            Error::new(Errno::ENODEV, message).hint("check that its node has started all of its targets")
        })
    }
}

/// The answer to a change that is done, or a sync.
pub(crate) fn change_reply(store: &Store) -> StorageReply {
    StorageReply::Done { verifier: store.verifier() }
}

impl Served {
    #[cold]
    async fn wait_until_open(&self) -> Result<()> {
        if rt::timeout(WAIT_TIMEOUT, self.opened.wait()).await.is_some() {
            return Ok(());
        }
        let message = format!("crash reconciliation of target {} hasn't finished", self.store.target());
        Err(Error::new(Errno::ETIMEDOUT, message)
            .hint("it needs the metadata service for that: check that it runs (weft health)"))
    }

    pub(crate) fn failed(&self, error: &StoreError) -> Error {
        self.counters.failed(&self.store, error)
    }
}

/// Executes a request on a store, for a caller that has no lower bound of the chunk file's length.
pub(crate) async fn execute(
    store: &Store,
    ino: ChunkFileId,
    op: StorageOp,
    payload: Option<IoBuf>,
) -> chunkstore::Result<StorageReply> {
    execute_op(store, (ino, 0), op, payload).await
}

/// Executes a request on a store.
pub(crate) async fn execute_request(
    store: &Store,
    request: &StorageRequest,
    payload: Option<IoBuf>,
) -> chunkstore::Result<StorageReply> {
    execute_op(store, (request.ino, request.length_bound), request.op.clone(), payload).await
}

async fn execute_op(
    store: &Store,
    (ino, min_len): (ChunkFileId, u64),
    op: StorageOp,
    payload: Option<IoBuf>,
) -> chunkstore::Result<StorageReply> {
    if matches!(op, StorageOp::Rewrite { .. } | StorageOp::ExpectChecksums { .. }) {
        return Box::pin(execute_repair(store, ino, op, payload)).await.map(|()| StorageReply::Unit);
    }
    // Requests without data don't use it.
    let payload = payload.unwrap_or_else(|| IoBuf::alloc(0));
    match op {
        StorageOp::Read { offset, path } => {
            store.read_at(At { ino, offset, min_len }, &payload, convert::path(path)).await?;
        }
        StorageOp::Write { offset, path, durable } => {
            let (at, durability) = (At { ino, offset, min_len }, convert::durability(durable));
            store.write_at(at, &payload, convert::path(path), durability, ready(Ok(()))).await?;
        }
        // Rare beside those, and large together: kept out of the future of every request.
        op => return Box::pin(execute_other(store, (ino, min_len), op)).await,
    }
    Ok(StorageReply::Unit)
}

/// Executes the requests that repair a damaged replica.
async fn execute_repair(
    store: &Store,
    ino: ChunkFileId,
    op: StorageOp,
    payload: Option<IoBuf>,
) -> chunkstore::Result<()> {
    match op {
        StorageOp::Rewrite { range, len } => store.rewrite(ino, range, payload.as_ref(), len).await,
        StorageOp::ExpectChecksums { first, len } => {
            let bytes = payload.as_ref().map_or(&[][..], IoBuf::as_slice);
            store.expect_sums(ino, first, &convert::sums(bytes), len).await
        }
        other => Err(StoreError::unsupported(store.target(), other.spec().name)),
    }
}

/// Executes the requests that neither read nor write, and refuses those that no store executes.
async fn execute_other(
    store: &Store,
    (ino, min_len): (ChunkFileId, u64),
    op: StorageOp,
) -> chunkstore::Result<StorageReply> {
    match op {
        // The service answers these before they reach a store, or no caller sends them in this
        // role. Success would acknowledge what the store didn't do.
        StorageOp::Read { .. }
        | StorageOp::Write { .. }
        | StorageOp::Fence { .. }
        | StorageOp::TrackDirty { .. }
        | StorageOp::NextDirty { .. }
        | StorageOp::EndDirtyTracking { .. }
        | StorageOp::Committed
        | StorageOp::Digests { .. }
        | StorageOp::AdoptVerifier { .. }
        | StorageOp::CopyReplica { .. }
        | StorageOp::Repair { .. }
        | StorageOp::Measure { .. }
        | StorageOp::Traffic
        | StorageOp::Rewrite { .. }
        | StorageOp::ExpectChecksums { .. }
        | StorageOp::Regions { .. } => {
            return Err(StoreError::unsupported(store.target(), op.spec().name));
        }
        StorageOp::Truncate { len } => store.truncate(ino, len).await?,
        StorageOp::Allocate { range, how } => {
            let at = At { ino, offset: range.start, min_len };
            store.allocate_at(at, range.len(), convert::allocate(how)).await?;
        }
        StorageOp::Delete => store.delete(ino).await?,
        StorageOp::SetAside => store.set_aside(ino).await?,
        StorageOp::Sync => store.sync(ino).await?,
        StorageOp::DiscardLost { range } => {
            let lost = store.give_up(ino, range).await?;
            let regions = lost.into_iter().map(|range| (ino, range)).collect();
            return Ok(StorageReply::Regions { regions, next: None });
        }
        StorageOp::Survey { range, unit, read } => {
            let survey = store.survey(ino, range, unit, read).await?;
            return Ok(StorageReply::Survey(convert::survey(survey)));
        }
        StorageOp::MarkLost { range } => store.mark_lost(ino, range).await?,
        StorageOp::SetTime { time } => store.set_time(ino, time).await?,
        StorageOp::SyncTarget => store.sync_all().await?,
        StorageOp::Stat => {
            let stat = store.stat(ino).await?;
            return Ok(StorageReply::Stat {
                len: stat.len,
                blocks: stat.blocks,
                mtime: stat.mtime,
                is_lost: stat.is_lost,
            });
        }
        StorageOp::Seek { from, what } => {
            let found = store.seek_at(At { ino, offset: from, min_len }, convert::seek(what)).await?;
            return Ok(StorageReply::Offset(found));
        }
        StorageOp::SpaceNeeded { range } => {
            let space = store.space_needed(ino, range, MAX_GAPS).await?;
            return Ok(StorageReply::SpaceNeeded(convert::space_needed(space)));
        }
        StorageOp::Space => {
            let space = store.space().await?;
            return Ok(StorageReply::Space { capacity: space.capacity, free: space.free });
        }
    }
    Ok(StorageReply::Unit)
}

impl Handler<StorageRequest, StorageReply> for StorageService {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(self.answer(request, Deadline::NEVER, payload))
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<StorageReply>> {
        self.handle_with_deadline(caller, Deadline::NEVER, request, payload)
    }

    fn handle_with_deadline<'a>(
        &'a self,
        caller: &'a Caller,
        deadline: Deadline,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<StorageReply>> {
        if let Err(refusal) = self.check_export(caller, &request) {
            return Box::pin(async { Err(refusal) });
        }
        let Some(check) = self.capability_check.get() else {
            return Box::pin(self.answer(request, deadline, payload));
        };
        Box::pin(async move {
            check.check(&caller.name, caller.holder, &request).await?;
            self.answer(request, deadline, payload).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn futures_of_requests_are_small() {
        type Parts = (&'static StorageService, StorageRequest);
        // Each is copied into its box, and the larger ones around it before that.
        let answer = future_bytes(|(service, request): Parts| service.answer(request, Deadline::NEVER, None));
        assert!(answer <= 2048, "{answer} bytes");
    }
}
