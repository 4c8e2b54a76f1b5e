//! Sessions that follow partitions from one service to another.

use crate::service::MetaService;
use crate::sessions::{Session, stored_answers};
use crate::settle::Recovery;
use crate::view::not_owner;
use types::{InodeId, PartitionId, Result};
use wire::Promise;

impl MetaService {
    /// A session relies on nothing any more that another service told it of these partitions, and
    /// has these inodes open. As with a registration, what it wrote and hadn't reported is settled,
    /// and what it has promised is made, before others may ask for it.
    pub(crate) async fn follow(
        &self,
        session: &Session,
        partitions: &[PartitionId],
        (in_use, promised): (&[InodeId], &[Promise]),
    ) -> Result<()> {
        let _arriving = self.grace.arrives(session.id);
        let _turn = match self.grace.awaits_following(session.id).is_empty() {
            true => None,
            // Of two copies one waits: what it settles and gives up could be what the session has
            // been granted after the other.
            false => Some(self.sessions.turn_to_register(session.id).write().await),
        };
        if let Some(foreign) = partitions.iter().find(|partition| !self.is_owned(**partition)) {
            return Err(not_owner(*foreign));
        }
        // Where it has followed already it may have been granted leases since: then this is an old
        // request that comes again.
        let awaited = self.grace.awaits_following(session.id);
        let partitions: Vec<PartitionId> =
            partitions.iter().copied().filter(|partition| awaited.contains(partition)).collect();
        let mut recovery = Recovery::default();
        for &partition in &partitions {
            self.settle_files(partition, &|other| other == session.id, &mut recovery).await?;
        }
        session.hear();
        // The other service may have carried out what is going to be sent here again.
        session.take_answers(stored_answers(&self.executors.store, session.id).await?);
        self.leases.leave_partitions(session.id, &partitions);
        let asker = session.asker();
        let theirs = in_use.iter().filter(|ino| partitions.contains(&ino.partition()));
        let told = self.grace.opens_to_follow(session.id, &partitions);
        self.mark_opens(asker, told.iter().chain(theirs));
        let theirs = promised.iter().filter(|promise| partitions.contains(&promise.file.parent.partition()));
        self.keep_promises(session, theirs).await;
        self.session_followed(session.id, &partitions);
        Ok(())
    }
}
