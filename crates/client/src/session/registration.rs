//! Registration with metadata services: at the start, after a restart of a service, and when
//! partitions move between services.
//!
//! In all three cases the service has no record of this session's leases on the inodes concerned.
//! It grants nothing to other sessions until this session has reported that it relies on no lease
//! any more (or has ended). So the client first drops everything, in its own cache and the
//! kernel's, and then registers, with a list of its open inodes. The service then recovers what was
//! written and not reported.
//!
//! The new owner reports that a partition has moved ([`wire::MetaReply::PartitionsTakenOver`]), not the map:
//! only the service knows which sessions it waits for, and a partition may have moved away and back
//! between two maps. The client doesn't ask the old owner: it has released the partition, or is
//! dead, and can't have granted anything since.

use crate::session::Session;
use crate::session::lease_holder::{Concerned, Resume};
use crate::session::recall::RETRY_PAUSE;
use crate::session::services::Service;
use crate::unexpected;
use std::sync::atomic::Ordering;
use types::{Errno, Error, InodeId, PartitionId, Result};
use wire::{AsyncChange, AsyncCreate, MetaOp, MetaReply, ReportedSize};

/// Maximum number of sizes in one request: about 40 KiB.
const SIZES_PER_REQUEST: usize = 4096;

/// Maximum number of open inodes in one request: some 40 KiB, beside the asynchronous creates.
const OPENS_PER_REQUEST: usize = 4096;

impl Session {
    /// Registers the session with the cluster. Before that it gets no leases. Background tasks
    /// register it with services that aren't needed to find the root directory.
    pub(crate) async fn register(&self) -> Result<()> {
        let service = self.services.owner_of(InodeId::ROOT.partition()).map_err(|_| {
            Error::new(Errno::ENODEV, "no node of the cluster runs a metadata service")
                .hint("weft node list shows the services of each node")
        })?;
        loop {
            match self.register_at(&service).await {
                Err(error) if error.errno == Errno::EAGAIN => rt::sleep(RETRY_PAUSE).await,
                registered => return registered,
            }
        }
    }

    pub(super) async fn register_at(&self, service: &Service) -> Result<()> {
        let reporting_process = self.reclaim_sizes(service).await?;
        // A service that doesn't know the session yet gets its locks when it takes partitions over.
        if service.is_registered() {
            self.reclaim_locks(service, &|ino| self.services.owns(service, ino)).await?;
        }
        let in_use = self.reclaim_opens(service, &|ino| self.services.owns(service, ino)).await?;
        let sent_ns = rt::monotonic_ns();
        let pending_creates = self.seal_creates(&|dir| self.services.owns(service, dir));
        let pending_changes = self.pending_changes(&|dir| self.services.owns(service, dir));
        let register = MetaOp::Register { in_use, pending_creates, pending_changes, reporting_process };
        self.query_service(service, register).await?;
        self.note_answer(service, sent_ns);
        service.note_registration();
        Ok(())
    }

    /// Handles the restart of a service, which has lost the record of all leases, so that none of
    /// them is held any more. Other sessions can change nothing until this session is registered
    /// again; until then, everything that depends on these leases is dropped.
    pub(super) async fn register_again(&self, service: &Service) {
        service.recalls_seen.store(0, Ordering::Release);
        let ended = self.leases.end_leases_of(service.node);
        let concerned = |ino: InodeId| self.services.owns(service, ino);
        let resume = self.drop_ended_leases(ended, &concerned).await;
        while self.end_cause().is_none() && !service.is_gone() {
            match self.register_at(service).await {
                Ok(()) => break,
                Err(error) if error.errno == Errno::ESTALE => self.end_session(error).await,
                Err(error) => {
                    tracing::warn!(%error, "registering the session again failed");
                    self.note_failure(service, &error);
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
        }
        resume();
        self.wake_suspended();
    }

    /// Handles the move of partitions to a service from another one, which granted the leases that
    /// are held there.
    pub(super) async fn follow_partitions(&self, service: &Service, partitions: &[PartitionId]) {
        tracing::info!(node = %service.node, partitions = partitions.len(), "following partitions that moved to another metadata service");
        let ended = self.leases.end_leases_in(partitions);
        let concerned = |ino: InodeId| partitions.contains(&ino.partition());
        let resume = self.drop_ended_leases(ended, &concerned).await;
        match self.report_moved_partitions(service, partitions, &concerned).await {
            Ok(()) => {}
            Err(error) if error.errno == Errno::ESTALE => self.end_session(error).await,
            // The service asks again.
            Err(error) => {
                tracing::warn!(node = %service.node, %error, "following partitions to another metadata service failed");
                rt::sleep(RETRY_PAUSE).await;
            }
        }
        resume();
        self.wake_suspended();
    }

    /// Reports the session's state in partitions that a service has taken over.
    async fn report_moved_partitions(
        &self,
        service: &Service,
        partitions: &[PartitionId],
        concerned: Concerned<'_>,
    ) -> Result<()> {
        let reporting_process = self.reclaim_sizes(service).await?;
        self.reclaim_locks(service, concerned).await?;
        let in_use = self.reclaim_opens(service, concerned).await?;
        let pending_creates = self.seal_creates(concerned);
        let pending_changes = self.pending_changes(concerned);
        let partitions = partitions.to_vec();
        let follow =
            MetaOp::Follow { partitions, in_use, pending_creates, pending_changes, reporting_process };
        self.query_service(service, follow).await.map(drop)
    }

    /// Reports the inodes of open files to a service. Returns the last of them, for the request by
    /// which the session registers or follows a partition.
    async fn reclaim_opens(&self, service: &Service, concerned: Concerned<'_>) -> Result<Vec<InodeId>> {
        let in_use = self.inodes_in_use().into_iter().filter(|&ino| concerned(ino));
        let mut in_use: Vec<InodeId> = in_use.collect();
        in_use.iter().for_each(|&ino| self.leases.mark_open(ino));
        while in_use.len() > OPENS_PER_REQUEST {
            let inodes = in_use.split_off(in_use.len() - OPENS_PER_REQUEST);
            self.query_service(service, MetaOp::ReclaimOpens { inodes }).await?;
        }
        Ok(in_use)
    }

    /// Reports to a service, with which the session is about to register, the sizes of files that
    /// this session was writing exclusively. Returns the number of the service's process, for the
    /// request by which the session registers or follows a partition. The transport repeats a
    /// request when the service has restarted, and the new process doesn't have the sizes that the
    /// old one got. So this must precede every other report.
    ///
    /// # Errors
    /// The transport's, and `ESTALE` when the session has ended; `EAGAIN` when the service has
    /// restarted meanwhile.
    async fn reclaim_sizes(&self, service: &Service) -> Result<u64> {
        let mut reporting_process = self.report_sizes(service, Vec::new()).await?;
        // The sizes of all files: the map may not show yet which partitions the service has taken
        // over. It ignores the others.
        let sizes = self.holder.upgrade().map_or_else(Vec::new, |holder| holder.take_sizes_to_report());
        for batch in sizes.chunks(SIZES_PER_REQUEST) {
            let process = self.report_sizes(service, batch.to_vec()).await?;
            if std::mem::replace(&mut reporting_process, process) != process {
                return Err(Errno::EAGAIN.into());
            }
        }
        Ok(reporting_process)
    }

    async fn report_sizes(&self, service: &Service, sizes: Vec<ReportedSize>) -> Result<u64> {
        match self.query_service(service, MetaOp::ReclaimSizes { sizes }).await?.reply {
            MetaReply::Process(number) => Ok(number),
            other => Err(unexpected(other)),
        }
    }

    fn inodes_in_use(&self) -> Vec<InodeId> {
        self.holder.upgrade().map_or_else(Vec::new, |holder| holder.inodes_in_use())
    }

    fn seal_creates(&self, concerned: Concerned<'_>) -> Vec<AsyncCreate> {
        self.holder.upgrade().map_or_else(Vec::new, |holder| holder.seal_creates(concerned))
    }

    fn pending_changes(&self, concerned: Concerned<'_>) -> Vec<AsyncChange> {
        self.holder.upgrade().map_or_else(Vec::new, |holder| holder.pending_changes(concerned))
    }

    async fn drop_ended_leases(&self, ended: Vec<InodeId>, concerned: Concerned<'_>) -> Resume {
        match self.holder.upgrade() {
            Some(holder) => holder.drop_ended_leases(ended, concerned).await,
            None => Box::new(|| {}),
        }
    }
}
