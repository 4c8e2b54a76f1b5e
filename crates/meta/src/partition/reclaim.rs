//! Sessions that move with partitions from one metadata service to another.

use crate::data::size_recovery::Recovery;
use crate::session::async_changes::Unsent;
use crate::session::registration::Registration;
use crate::session::table::Session;
use crate::store::transaction_view::not_owner;
use types::{InodeId, PartitionId, Result};

impl Registration {
    /// Handles a session that has discarded what the previous owner of these partitions granted,
    /// and reports the inodes that it has open there. As at a registration, this recovers the sizes
    /// of files that the session was writing, and executes its asynchronous changes,
    /// before other sessions may access them.
    pub async fn reclaim_partitions(
        &self,
        session: &Session,
        partitions: &[PartitionId],
        (in_use, unsent): (&[InodeId], Unsent<'_>),
    ) -> Result<()> {
        let _return_guard = self.grace.begin_return(session.id);
        let _registration_lock = match self.grace.partitions_to_reclaim(session.id).is_empty() {
            true => None,
            // A retransmission waits for the original: its size recovery and releases could hit
            // leases that the session got after the original.
            false => Some(self.sessions.registration_lock(session.id).write().await),
        };
        if let Some(foreign) = partitions.iter().find(|partition| !self.executors.is_owned(**partition)) {
            return Err(not_owner(*foreign));
        }
        // In a partition to which the session has moved already, it may have got leases since: then
        // this is an old, repeated request.
        let awaited = self.grace.partitions_to_reclaim(session.id);
        let partitions: Vec<PartitionId> =
            partitions.iter().copied().filter(|partition| awaited.contains(partition)).collect();
        let mut recovery = Recovery::default();
        for &partition in &partitions {
            self.sizes.recover_sizes(partition, &|other| other == session.id, &mut recovery).await?;
        }
        session.note_contact();
        // The previous owner may have executed requests that the session will retransmit to this
        // service.
        session.restore_replies(self.records.replies(session.id).await?);
        self.leases.drop_session_in(session.id, &partitions);
        let requester = session.lease_requester();
        let opens_here = in_use.iter().filter(|ino| partitions.contains(&ino.partition()));
        let opens = self.grace.take_opens_of(session.id, &partitions);
        self.mark_opens(requester, opens.iter().chain(opens_here));
        self.replay_unsent(session, unsent, |dir| partitions.contains(&dir.partition())).await;
        self.returns.session_reclaimed(session.id, &partitions);
        Ok(())
    }
}
