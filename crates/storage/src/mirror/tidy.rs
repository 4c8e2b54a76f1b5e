//! What a crash of all members has left is put right by the metadata service, before clients see the group.
//!
//! The crash may have kept chunks while the metadata that explains them was lost, or have lost a cut. A replica that was left by one knows which files
//! were changing ([`chunkstore::Store::take_touched`]). If its group goes on from it alone, since nobody has more, these files are made what the metadata
//! says of them; if others have more, it is brought in step by them, and the list is of no use.

use super::Mirrors;
use super::replica::Replica;
use parking_lot::Mutex;
use rt::sync::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Errno, Error, Result};
use wire::mgmt::Touched;

/// Rest before management is asked again that refused for now, or the metadata service behind it.
const RETRY: Duration = Duration::from_secs(1);

/// How long a client's request waits: less than its usual patience, so that it learns the reason.
const PATIENCE: Duration = Duration::from_secs(45);

/// How often it looks meanwhile whether this is the primary yet.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Files of a replica that were changing at a crash, until they are put right.
pub(super) struct Leftovers {
    touched: Mutex<Touched>,
    /// Looked at by every request, without a lock.
    are_there: AtomicBool,
    /// Somebody sees to it.
    is_begun: AtomicBool,
    gone: Event,
}

impl Leftovers {
    pub(super) fn new(touched: Touched) -> Leftovers {
        let are_there = AtomicBool::new(!touched.is_empty());
        Leftovers {
            touched: Mutex::new(touched),
            are_there,
            is_begun: AtomicBool::new(false),
            gone: Event::new(),
        }
    }

    pub(super) fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Acquire)
    }

    /// There are none any more.
    pub(super) fn forget(&self) {
        if self.are_there() {
            *self.touched.lock() = Touched::default();
            self.are_there.store(false, Ordering::Release);
            self.gone.set();
        }
    }
}

impl Mirrors {
    /// Has the metadata service put right what a crash has left on this replica, which is the primary and the only good member. Goes on in the background; it
    /// needs no more than to be asked for.
    pub(super) fn begin_to_tidy(self: &Arc<Self>, replica: &Arc<Replica>) {
        let leftovers = &replica.leftovers;
        if !leftovers.are_there() || leftovers.is_begun.swap(true, Ordering::AcqRel) {
            return;
        }
        let (mirrors, replica) = (self.clone(), replica.clone());
        rt::spawn(async move {
            mirrors.tidy(&replica).await;
            replica.leftovers.is_begun.store(false, Ordering::Release);
        });
    }

    async fn tidy(&self, replica: &Replica) {
        let touched = replica.leftovers.touched.lock().clone();
        for some in touched.pieces() {
            while let Err(error) = self.links.management.tidy_group(replica.group, some.clone()).await {
                tracing::warn!(
                    target_id = %replica.target, group = %replica.group, %error,
                    "what a crash has left of a group is not put right yet"
                );
                if self.primary_view(replica).is_err() {
                    return;
                }
                rt::sleep(RETRY).await;
            }
        }
        tracing::info!(
            target_id = %replica.target, group = %replica.group, tidied = touched.files.len(),
            "what a crash of all its members has left of a group is put right"
        );
        replica.forget_leftovers();
    }

    /// Waits until a client may see the replica, which is the primary.
    #[cold]
    pub(super) async fn tidied(self: &Arc<Self>, replica: &Arc<Replica>) -> Result<()> {
        let began_ns = rt::monotonic_ns();
        while replica.leftovers.are_there() {
            self.primary_view(replica)?;
            self.begin_to_tidy(replica);
            rt::timeout(LOOK_INTERVAL, replica.leftovers.gone.wait()).await;
            if rt::monotonic_ns() - began_ns > PATIENCE.as_nanos() as u64 && replica.leftovers.are_there() {
                let message = format!(
                    "group {} is still being put right after a crash of all its members",
                    replica.group
                );
                return Err(Error::new(Errno::ETIMEDOUT, message)
                    .hint("it needs the metadata service for that: check that it runs (weft health)"));
            }
        }
        Ok(())
    }
}
