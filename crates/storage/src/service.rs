//! Dispatch.

use crate::alarm::Alarm;
use crate::convert;
use crate::fences::Fences;
use chunkstore::{Kind, Store, StoreError};
use net::{Handler, LocalFuture};
use rt::IoBuf;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{Errno, Error, InodeId, Result, TargetId};
use wire::{StorageOp, StorageReply, StorageRequest};

/// Requests and failures of one target, since the service was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub requests: u64,
    /// Requests that failed for lack of space.
    pub no_space: u64,
    /// Requests that failed for damage or errors of the local file system.
    pub io_errors: u64,
}

struct Served {
    store: Arc<Store>,
    alarm: Alarm,
    requests: AtomicU64,
    no_space: AtomicU64,
    io_errors: AtomicU64,
}

/// Answers storage requests for a set of targets.
pub struct StorageService {
    targets: BTreeMap<TargetId, Served>,
    fences: Fences,
}

impl StorageService {
    /// A service for these stores. Each must be the only one of its target.
    pub fn new(stores: impl IntoIterator<Item = Arc<Store>>) -> StorageService {
        let serve = |store: Arc<Store>| {
            let served = Served {
                alarm: Alarm::default(),
                requests: AtomicU64::new(0),
                no_space: AtomicU64::new(0),
                io_errors: AtomicU64::new(0),
                store,
            };
            (served.store.target(), served)
        };
        StorageService { targets: stores.into_iter().map(serve).collect(), fences: Fences::default() }
    }

    /// The stores that are served, by target.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.targets.values().map(|served| &served.store)
    }

    /// What a target has done; `None` for one that isn't served here.
    pub fn counters(&self, target: TargetId) -> Option<Counters> {
        let served = self.targets.get(&target)?;
        Some(Counters {
            requests: served.requests.load(Ordering::Relaxed),
            no_space: served.no_space.load(Ordering::Relaxed),
            io_errors: served.io_errors.load(Ordering::Relaxed),
        })
    }

    async fn answer(&self, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        let Some(served) = self.targets.get(&request.target) else {
            let message = format!("target {} is not served here", request.target);
            return Err(
                Error::new(Errno::ENODEV, message).hint("check that its node has started all of its targets")
            );
        };
        served.requests.fetch_add(1, Ordering::Relaxed);
        if let StorageOp::Fence { session } = request.op {
            self.fences.fence(session).await;
            return Ok(StorageReply::Unit);
        }
        let _running = self.fences.enter(request.session)?;
        let needs_payload = matches!(request.op, StorageOp::Read { .. } | StorageOp::Write { .. });
        if needs_payload && payload.is_none() {
            return Err(Error::new(Errno::EINVAL, "a read or write came without its payload"));
        }
        match perform(&served.store, request.ino, request.op, payload).await {
            Ok(reply) => Ok(reply),
            Err(e) => Err(served.failed(&e)),
        }
    }
}

impl Served {
    fn failed(&self, error: &StoreError) -> Error {
        match error.kind() {
            Kind::NoSpace => self.no_space.fetch_add(1, Ordering::Relaxed),
            Kind::Io | Kind::Corrupt { .. } => self.io_errors.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.alarm.raise(self.store.target(), error, rt::monotonic_ns());
        convert::error(error)
    }
}

async fn perform(
    store: &Store,
    ino: InodeId,
    op: StorageOp,
    payload: Option<IoBuf>,
) -> chunkstore::Result<StorageReply> {
    // Requests without data have none to look at.
    let payload = payload.unwrap_or_else(|| IoBuf::alloc(0));
    match op {
        StorageOp::Read { offset, path } => store.read(ino, offset, &payload, convert::path(path)).await?,
        StorageOp::Write { offset, path, durable } => {
            let durability = convert::durability(durable);
            store.write(ino, offset, &payload, convert::path(path), durability).await?;
        }
        StorageOp::Truncate { len } => store.truncate(ino, len).await?,
        StorageOp::Allocate { range, how } => store.allocate(ino, range, convert::allocate(how)).await?,
        StorageOp::Delete => store.delete(ino).await?,
        StorageOp::Sync => store.sync(ino).await?,
        StorageOp::Fence { .. } => {}
        StorageOp::SyncTarget => store.sync_all().await?,
        StorageOp::Stat => {
            let stat = store.stat(ino).await?;
            return Ok(StorageReply::Stat { len: stat.len, blocks: stat.blocks, mtime: stat.mtime });
        }
        StorageOp::Seek { from, what } => {
            return Ok(StorageReply::Offset(store.seek(ino, from, convert::seek(what)).await?));
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
        Box::pin(self.answer(request, payload))
    }
}
