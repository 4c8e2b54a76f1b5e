//! A group goes on from here although this copy had missed something: all that had everything are
//! lost, and an administrator has accepted what goes with them.
//!
//! Until that is so for everybody, nobody is served: whoever relies on what was acknowledged under
//! the group's verifier is to be told that it may be gone, files that were deleted meanwhile must
//! not come back, and what was cut must not show. The map says that it is to be done, until this
//! primary says that it is: a process that dies in between begins anew.

use super::replica::Replica;
use super::{MemberChange, Mirrors};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use types::{Epoch, Group, InodeId, MemberState, Result, TargetId};
use wire::MAX_REGIONS;

/// How far a replica is with that.
pub(super) struct Revival {
    /// Held by who does it.
    doing: rt::sync::RwLock,
    /// What it has is under another verifier, and counts as left by a crash: what is left to do is
    /// up to the metadata service.
    is_done: AtomicBool,
    /// Somebody sees to it that it ends.
    is_begun: AtomicBool,
}

impl Default for Revival {
    fn default() -> Revival {
        Revival {
            doing: rt::sync::RwLock::new(),
            is_done: AtomicBool::new(false),
            is_begun: AtomicBool::new(false),
        }
    }
}

impl Revival {
    /// Another time it is to be done anew.
    pub(super) fn follow(&self, group: &Group, own: TargetId) {
        if group.revived != Some(own) {
            self.is_done.store(false, Ordering::Release);
        }
    }

    /// Whether it is to be done before anybody is served.
    pub(super) fn is_due(&self, group: &Group, own: TargetId) -> bool {
        group.revived == Some(own) && !self.is_done.load(Ordering::Acquire)
    }
}

impl Mirrors {
    /// Makes everything that this copy has count as left by a crash, under another verifier. To be
    /// asked before anybody is served, when all know who is out.
    ///
    /// # Errors
    /// `EREMCHG` when the group has other members by now, and when the disk fails.
    #[cold]
    pub(super) async fn revive(&self, replica: &Replica) -> Result<()> {
        let _alone = replica.revival.doing.write().await;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        if !replica.revival.is_due(group, replica.target) {
            return Ok(());
        }
        // What an older primary has begun here has ended then, and nothing more of it comes.
        let _turn = replica.turns.enter(replica.group, group.since, true).await?;
        let failed = |error| replica.failed(&error);
        // That of the group may be on this disk, if the process has been started anew since this
        // copy missed something.
        replica.store.leave_verifier();
        replica.store.adopt_verifier(replica.store.verifier()).await.map_err(failed)?;
        let (mut names, mut from) = (Vec::new(), Some(InodeId(0)));
        while let Some(at) = from {
            let (some, next) = replica.store.files(at, MAX_REGIONS).await.map_err(failed)?;
            names.extend(some);
            from = next;
        }
        tracing::warn!(
            group = %replica.group, target_id = %replica.target, files = names.len(),
            "a group goes on from a copy that had missed something: its files are made to agree with the metadata"
        );
        replica.leftovers.add(names);
        replica.revival.is_done.store(true, Ordering::Release);
        Ok(())
    }

    /// Sees to it that it is done, and that management hears so. Goes on in the background, and
    /// needs no more than to be asked for now and then.
    pub(super) fn begin_to_revive(self: &Arc<Self>, replica: &Arc<Replica>) {
        if replica.revival.is_begun.swap(true, Ordering::AcqRel) {
            return;
        }
        let (mirrors, replica) = (self.clone(), replica.clone());
        rt::spawn(async move {
            if let Err(error) = mirrors.revive_whole(&replica).await {
                tracing::warn!(
                    group = %replica.group, target_id = %replica.target, %error,
                    "a group doesn't go on yet from a copy that had missed something"
                );
            }
            replica.revival.is_begun.store(false, Ordering::Release);
        });
    }

    async fn revive_whole(self: &Arc<Self>, replica: &Arc<Replica>) -> Result<()> {
        self.known_to_all(replica).await?;
        self.revive(replica).await?;
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        if group.revived != Some(replica.target) || replica.revival.is_due(group, replica.target) {
            return Ok(());
        }
        match replica.leftovers.are_there() {
            true => self.begin_to_tidy(replica),
            false => self.tell_revived(replica, group.since).await?,
        }
        Ok(())
    }

    /// Tells management that this copy agrees with the metadata.
    async fn tell_revived(&self, replica: &Replica, since: Epoch) -> Result<()> {
        let _alone = replica.deciding.write().await;
        let change = MemberChange {
            group: replica.group,
            since,
            target: replica.target,
            state: MemberState::Good,
            reason: "what it has agrees with the metadata".to_string(),
            orderly: true,
        };
        self.links.management.set_member(change).await.map(drop)
    }
}
