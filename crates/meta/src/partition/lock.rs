//! Partition locks: partitions that cross-partition transactions, of other services or of this one,
//! hold exclusively for a short time.
//!
//! A coordinator that needs a partition of another service asks its owner to lock it. The owner
//! lets everything that is under way there complete, runs nothing more, and returns its owner
//! record: that guards the coordinator's batch, as it guards the owner's own batches. If a lock
//! isn't returned in time, the owner revokes it by writing a new owner record. The coordinator's
//! batch doesn't match that record, so it is lost.

use crate::limits::{PARTITION_LOCK_TIMEOUT, PARTITION_LOCK_WAIT, RETRY_PAUSE};
use crate::partition::executor::{Executors, PartitionState};
use crate::service::MetaService;
use crate::store::record::Owner;
use crate::store::transaction_view::{not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome};
use namespace::leases::{InodeAccess, Requester};
use net::{Handler, LocalFuture};
use prost::Message;
use rt::IoBuf;
use std::sync::Arc;
use types::{Errno, Error, InodeId, PartitionId, Result, SessionId};
use wire::mgmt::ReconcileFiles;
use wire::{PartitionsReply, PartitionsRequest};

/// Token of a lock that is being revoked. Tokens of transactions are random and never have this
/// value.
const REVOKING: u64 = 0;

impl Executors {
    /// Locks a partition for a transaction, once nothing is under way there. Returns the guard of
    /// the transaction's batch.
    ///
    /// # Errors
    /// `PartitionNotServed` when another service owns the partition; `EAGAIN` when it can't be
    /// locked now: it isn't locked then.
    pub async fn lock_partition(&self, partition: PartitionId, token: u64) -> Result<Guard> {
        match rt::timeout(PARTITION_LOCK_WAIT, self.lock_partition_when_idle(partition, token)).await {
            Some(outcome) => outcome,
            None => {
                self.unlock_partition(partition, token, None);
                let message = format!("partition {partition} is busy");
                Err(Error::new(Errno::EAGAIN, message).hint("try again in a moment"))
            }
        }
    }

    async fn lock_partition_when_idle(&self, partition: PartitionId, token: u64) -> Result<Guard> {
        loop {
            self.check_owner_remotely(partition).await?;
            let (changed, ticket) = {
                let mut executor = self.lock(partition)?;
                self.retire(&mut executor);
                if executor.owner_uncertain {
                    continue;
                }
                match (executor.state, executor.locked_by) {
                    (PartitionState::NotOwned | PartitionState::Releasing, _) => {
                        return Err(not_owner(partition));
                    }
                    (PartitionState::Recovering | PartitionState::Reclaiming, _) => {
                        (executor.state_changed.clone(), None)
                    }
                    (PartitionState::Serving, Some(other)) if other != token => {
                        (executor.state_changed.clone(), None)
                    }
                    (PartitionState::Serving, _) => {
                        executor.set_lock(Some(token));
                        match executor.pending.back() {
                            None => return Ok(executor.owner.clone()),
                            Some((ticket, _)) => (executor.state_changed.clone(), Some(ticket.clone())),
                        }
                    }
                }
            };
            match ticket {
                // The command that enqueued the commit handles a failure of the store; the
                // transaction meets it, too.
                Some(ticket) => match self.store.wait(&ticket).await {
                    Ok(_) => {}
                    Err(error) => {
                        self.unlock_partition(partition, token, None);
                        return Err(store_error(&error));
                    }
                },
                None => changed.wait().await,
            }
        }
    }

    /// Unlocks a partition if `token` still holds the lock. `written`: keys that another service
    /// wrote.
    pub fn unlock_partition(&self, partition: PartitionId, token: u64, written: Option<&[Bytes]>) {
        let Ok(mut executor) = self.lock(partition) else { return };
        if executor.locked_by == Some(token) {
            self.invalidate_cached(written.unwrap_or(&[]));
            executor.set_lock(None);
        }
    }

    /// Locks a partition for a transaction of another service. Revokes the lock if it isn't
    /// returned in time.
    async fn lend(self: &Arc<Self>, partition: PartitionId, token: u64) -> Result<Guard> {
        let owner = self.lock_partition(partition, token).await?;
        rt::spawn(self.clone().revoke_after_timeout(partition, token));
        Ok(owner)
    }

    /// Revokes a lock that isn't returned in time.
    async fn revoke_after_timeout(self: Arc<Self>, partition: PartitionId, token: u64) {
        rt::sleep(PARTITION_LOCK_TIMEOUT).await;
        match self.lock(partition) {
            Ok(mut executor) if executor.locked_by == Some(token) => executor.locked_by = Some(REVOKING),
            _ => return,
        }
        tracing::warn!(
            partition = partition.0,
            "another metadata service did not return a partition lock in time: it is being revoked"
        );
        while let Err(error) = self.revoke_partition_lock(partition).await {
            tracing::error!(partition = partition.0, %error, "a partition lock can't be revoked yet");
            rt::sleep(RETRY_PAUSE).await;
        }
    }

    async fn revoke_partition_lock(&self, partition: PartitionId) -> Result<()> {
        let guard = {
            let executor = self.lock(partition)?;
            if executor.locked_by != Some(REVOKING) {
                return Ok(());
            }
            executor.owner.clone()
        };
        let next = self.next_owner(partition, guard.expected.as_deref())?;
        let value: Bytes = next.encode_to_vec().into();
        let writes = vec![(guard.key.clone(), Some(value.clone()))];
        let batch = Batch { guards: vec![guard.clone()], writes };
        let outcome = self.store.commit(batch).await.map_err(|error| store_error(&error))?;
        let mut executor = self.lock(partition)?;
        match outcome {
            Outcome::Applied => {
                executor.owner = Guard { key: guard.key, expected: Some(value) };
                self.invalidate_cached_partition(partition);
                executor.set_lock(None);
            }
            Outcome::GuardFailed => executor.mark_not_owned(),
            Outcome::Uncertain => return Err(Errno::EAGAIN.into()),
        }
        Ok(())
    }

    /// The next owner record by which this service owns a partition.
    pub fn next_owner(&self, partition: PartitionId, before: Option<&[u8]>) -> Result<Owner> {
        Owner::after(before, self.node).map_err(|cause| {
            Error::new(Errno::EIO, format!("the owner record of partition {partition} is damaged: {cause}"))
        })
    }

    /// Refuses crash reconciliation during size recovery: chunk files are cut to sizes only once
    /// the sizes have been recovered from chunk files.
    fn require_sizes_recovered(&self, touched: &ReconcileFiles) -> Result<()> {
        let new = touched.new.iter().map(|(first, _)| first);
        for ino in touched.files.iter().chain(new).filter(|ino| self.has(ino.partition())) {
            match self.lock(ino.partition())?.state {
                PartitionState::NotOwned | PartitionState::Releasing => {
                    return Err(not_owner(ino.partition()));
                }
                PartitionState::Recovering => {
                    let message = format!("partition {} is still recovering file sizes", ino.partition());
                    return Err(Error::new(Errno::EAGAIN, message));
                }
                PartitionState::Reclaiming | PartitionState::Serving => {}
            }
        }
        Ok(())
    }
}

impl MetaService {
    /// Recalls leases that conflict with another service's command; reports whether none is left.
    async fn recall_conflicting_for(
        &self,
        session: SessionId,
        accesses: Vec<(InodeId, InodeAccess)>,
        wait: bool,
    ) -> Result<PartitionsReply> {
        let requester =
            Requester { session, last_recall: 0, now_ns: rt::monotonic_ns(), acknowledges: false };
        let mut due = Vec::new();
        for (ino, access) in accesses {
            if !self.executors.lock(ino.partition())?.is_owned() {
                return Err(not_owner(ino.partition()));
            }
            self.leases.recall_conflicting(&self.sessions, requester, (ino, access), &mut due);
        }
        let clear = due.is_empty();
        if wait {
            self.recalls.wait_for_acknowledgements(due).await;
        }
        Ok(PartitionsReply::Clear(clear || wait))
    }

    async fn answer_peer(&self, request: PartitionsRequest) -> Result<PartitionsReply> {
        match request {
            PartitionsRequest::LockPartition { partition, token } => {
                let owner = self.executors.lend(partition, token).await?.expected.unwrap_or_default();
                Ok(PartitionsReply::Locked { owner, no_leases: self.leases.is_empty() })
            }
            PartitionsRequest::UnlockPartition { partition, token, written } => {
                self.executors.unlock_partition(partition, token, Some(&written));
                Ok(PartitionsReply::Done)
            }
            PartitionsRequest::RecallConflicting { session, accesses, wait } => {
                self.recall_conflicting_for(session, accesses, wait).await
            }
            PartitionsRequest::Ended { session } => {
                self.eviction.handle_end_elsewhere(session);
                Ok(PartitionsReply::Done)
            }
            PartitionsRequest::Reconcile { target, touched } => {
                self.executors.require_sizes_recovered(&touched)?;
                self.reconcile_target(target, &touched).await.map(|()| PartitionsReply::Done)
            }
            PartitionsRequest::ReconcileGroup { group, touched } => {
                self.executors.require_sizes_recovered(&touched)?;
                self.reconcile_group(group, &touched).await.map(|()| PartitionsReply::Done)
            }
            PartitionsRequest::FileOn { target, partition } => {
                self.file_on_in(target, partition).await.map(PartitionsReply::File)
            }
            PartitionsRequest::FindPoolReference { pool, partition } => {
                self.inode_naming_pool_in(pool, partition).await.map(PartitionsReply::File)
            }
            PartitionsRequest::Sessions => Ok(PartitionsReply::Sessions(self.session_infos())),
            PartitionsRequest::Evict { session } => {
                self.evict_session(session).map(|()| PartitionsReply::Done)
            }
            PartitionsRequest::Executed => Ok(PartitionsReply::Executed(self.executors.serving())),
            PartitionsRequest::Drains => Ok(PartitionsReply::Drains(self.drain_progress())),
        }
    }
}

impl Handler<PartitionsRequest, PartitionsReply> for MetaService {
    fn handle(
        &self,
        request: PartitionsRequest,
        _payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<PartitionsReply>> {
        Box::pin(self.answer_peer(request))
    }
}
