//! Fencing of ended sessions at the storage targets.

use crate::data::chunks::{ChunkFiles, ChunkLocation, EpochedChunkFile};
use crate::limits::{FENCE_RETRY, FENCE_TIMEOUT};
use parking_lot::Mutex;
use std::sync::Arc;
use types::{SessionId, TargetId};
use wire::StorageOp;

/// Makes targets refuse sessions.
pub(crate) struct Fencing {
    chunks: Arc<ChunkFiles>,
    /// Sessions that were evicted while a target was down, which still has to be fenced. Bounded by
    /// the evictions during that time.
    pending: Mutex<Vec<(SessionId, TargetId)>>,
}

impl Fencing {
    pub fn new(chunks: Arc<ChunkFiles>) -> Fencing {
        Fencing { chunks, pending: Mutex::default() }
    }

    /// Makes every target refuse a session. A target that doesn't answer for [`FENCE_TIMEOUT`] is
    /// considered down, and fenced when it is back.
    pub async fn fence(&self, id: SessionId) {
        let since_ns = rt::monotonic_ns();
        let mut targets: Vec<TargetId> = self.chunks.channels.targets();
        targets.sort_unstable();
        loop {
            targets = self.fence_at(id, targets).await;
            if targets.is_empty() {
                return;
            }
            if rt::monotonic_ns().saturating_sub(since_ns) >= FENCE_TIMEOUT.as_nanos() as u64 {
                tracing::error!(
                    session = id.0,
                    ?targets,
                    "an evicted session is not fenced at these targets: they may still accept its writes"
                );
                self.pending.lock().extend(targets.into_iter().map(|target| (id, target)));
                return;
            }
            rt::sleep(FENCE_RETRY).await;
        }
    }

    /// Fences a session at targets. Returns those that didn't answer.
    async fn fence_at(&self, session: SessionId, targets: Vec<TargetId>) -> Vec<TargetId> {
        let fence = |target| async move {
            let fenced = self
                .chunks
                .at(ChunkLocation::Target(target), EpochedChunkFile::TARGET, StorageOp::Fence { session })
                .await;
            fenced.is_err().then_some(target)
        };
        rt::join_all(targets.into_iter().map(fence).collect()).await.into_iter().flatten().collect()
    }

    /// Fences sessions at targets that were down when the sessions ended.
    pub async fn retry(&self) {
        let unfenced = std::mem::take(&mut *self.pending.lock());
        for (id, target) in unfenced {
            let unfenced = self.fence_at(id, vec![target]).await;
            self.pending.lock().extend(unfenced.into_iter().map(|target| (id, target)));
        }
    }
}
