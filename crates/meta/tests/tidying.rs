//! A target whose process was started again is put right before clients are let in, and not afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test uses a part of the support")]

mod support;

use std::sync::Arc;
use support::Client;
use support::world::{ROOT, SECOND, Started, World, simulated};
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

/// After a restore nobody knows whether what the copy doesn't know is still needed: the file check tells of it, and the start takes nothing away.
#[test]
fn a_store_that_went_back_in_time_leaves_the_chunks_of_later_files_alone() {
    simulated(|world| async move {
        let client = world.client(5).await;
        let known = client.create(ROOT, "known").await.unwrap().ino;
        // Made after the copy, in the partition of the file before it.
        let later = InodeId(known.0 + 1);
        let rewound = world.rewound().await;
        let target = TargetId(1);
        rewound.chunks.lens.lock().insert((target, later), 100);
        rewound.meta.tidy(target, &[later]).await.unwrap();
        assert!(rewound.chunks.lens.lock().contains_key(&(target, later)));
        // Who was there before begins anew.
        assert_eq!(client_of(&rewound, 5).create(ROOT, "x").await.unwrap_err().errno, types::Errno::ESTALE);
        let new = rewound.client(6).await.create(ROOT, "new").await.unwrap().ino;
        assert!(new.partition() == known.partition() && new.sequence() > known.sequence() + (1 << 30));
        // What a crash leaves from now on is tidied as ever.
        let lost = InodeId(new.0 + 1);
        rewound.chunks.lens.lock().insert((target, lost), 100);
        rewound.meta.tidy(target, &[lost, later]).await.unwrap();
        assert_eq!(rewound.chunks.lens.lock().keys().map(|key| key.1).collect::<Vec<_>>(), [later]);
    });
}

fn client_of(world: &World, session: u64) -> Client {
    Client::new(&world.meta, session)
}
