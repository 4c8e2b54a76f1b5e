//! Version fence of a replica: changes under one version of a group have ended before anything
//! begins under the next.
//!
//! A late change from a former primary takes effect before the first request of a newer version, or
//! never.

use parking_lot::Mutex;
use rt::sync::Event;
use std::time::Duration;
use types::{Epoch, Error, GroupId, Refusal, Result};

/// How often a request that waits for older changes checks again; as a rule it is woken.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The group versions of one replica.
#[derive(Default)]
pub(crate) struct VersionFence {
    state: Mutex<State>,
    ended: Event,
}

#[derive(Default)]
struct State {
    version: Epoch,
    /// Running changes of this version, and of those before it.
    running: u32,
    older: u32,
}

/// A running change, until it is dropped.
pub(crate) struct VersionGuard<'a> {
    fence: &'a VersionFence,
    version: Epoch,
}

impl VersionFence {
    /// Begins a request under a version, when the changes under older ones have ended. Newer
    /// versions only wait for changes.
    ///
    /// # Errors
    /// `GroupVersionMismatch` when a request has begun under a newer version.
    pub(crate) async fn enter(
        &self,
        group: GroupId,
        version: Epoch,
        is_change: bool,
    ) -> Result<Option<VersionGuard<'_>>> {
        loop {
            let waiting = {
                let mut state = self.state.lock();
                if version < state.version {
                    return Err(version_mismatch(group));
                }
                if version > state.version {
                    *state = State { version, running: 0, older: state.older + state.running };
                }
                if state.older == 0 {
                    state.running += u32::from(is_change);
                    // Created for changes only, because its drop counts.
                    return Ok(is_change.then(|| VersionGuard { fence: self, version }));
                }
                // Cleared under the lock under which changes end.
                self.ended.clear();
                self.ended.wait()
            };
            // Another waiter may have cleared the event.
            rt::timeout(RECHECK_INTERVAL, waiting).await;
        }
    }
}

impl Drop for VersionGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.fence.state.lock();
        if state.version == self.version {
            state.running -= 1;
            return;
        }
        state.older -= 1;
        if state.older == 0 {
            self.fence.ended.set();
        }
    }
}

/// The error for a request whose version of the group differs from its receiver's.
pub(crate) fn version_mismatch(group: GroupId) -> Error {
    Error::new(Refusal::GroupVersionMismatch, format!("the members of group {group} have changed"))
        .hint("the sender reads the map again automatically; weft group show shows the state of the group")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn a_newer_version_waits_for_running_changes_and_fences_later_ones() {
        let run = async {
            let fence = VersionFence::default();
            let group = GroupId(1);
            let old = fence.enter(group, Epoch(3), true).await.unwrap();
            {
                let mut newer = pin!(fence.enter(group, Epoch(4), true));
                let mut context = Context::from_waker(Waker::noop());
                assert!(newer.as_mut().poll(&mut context).is_pending());
                let late = fence.enter(group, Epoch(3), true).await;
                assert_eq!(late.err().unwrap().errno, Refusal::GroupVersionMismatch);
                drop(old);
                assert!(matches!(newer.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
            }
            assert!(fence.enter(group, Epoch(5), false).await.unwrap().is_none());
            let state = fence.state.lock();
            assert_eq!((state.running, state.older), (0, 0));
        };
        rt::block_on(run).unwrap();
    }
}
