//! A target whose process was started again is put right before clients are let in, and not afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test uses a part of the support")]

mod support;

use std::sync::Arc;
use support::world::{SECOND, Started, simulated};
use types::{InodeId, TargetId};

/// The node asks again when the answer takes too long, and opens the target when it has one.
#[test]
fn whoever_asks_again_is_answered_when_the_first_copy_has_ended() {
    simulated(|world| async move {
        let (target, nobodys) = (TargetId(1), InodeId(1000));
        world.chunks.lens.lock().insert((target, nobodys), 100);
        let held = Arc::new(rt::sync::Event::new());
        *world.chunks.held.lock() = Some(held.clone());
        let tidy = || {
            let meta = world.meta.clone();
            Started::new(async move { meta.tidy(target, &[nobodys]).await })
        };
        let first = tidy();
        rt::sleep(5 * SECOND).await;
        let again = tidy();
        rt::sleep(SECOND).await;
        assert!(!first.is_done() && !again.is_done());
        held.set();
        again.wait().await.unwrap();
        assert!(first.is_done());
        assert!(world.chunks.lens.lock().is_empty());
    });
}
