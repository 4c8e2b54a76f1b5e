//! A metadata service whose host is paused for a while, and must not evict sessions for messages
//! that it didn't read meanwhile.

use crate::support::world::{Call, ROOT, SECOND, World, acknowledge, getattr, open_with_lease, recalls};
use crate::support::{Client, create};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use wire::{LeaseMode::Write, MetaOp};

/// Length of the pause: longer than the service waits for a silent session.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Runs a test on a host that is paused from its first second on, for [`STANDSTILL`].
fn with_a_standstill<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    let mut hosts = rt::sim::World::new(1);
    let host = hosts.add_host("metadata");
    let ended = Rc::new(Cell::new(false));
    let has_ended = ended.clone();
    hosts.spawn(host, async move {
        let world = World::new().await;
        let meta = world.meta.clone();
        test(world).await;
        meta.stop();
        has_ended.set(true);
    });
    hosts.advance(SECOND);
    hosts.stop(host);
    hosts.advance(STANDSTILL);
    hosts.resume(host);
    hosts.advance(4 * STANDSTILL);
    assert!(ended.get(), "the test was not over in time");
}

#[test]
fn a_session_gets_its_time_after_a_pause_of_the_service() {
    with_a_standstill(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        assert_eq!(one.grants(open_with_lease(ino, Write)).await, [(ino, Write)]);
        let waits = Call::call(&two, open_with_lease(ino, Write)).await;
        // Ends right after the pause, when the service has long recorded the sessions that it waits
        // for.
        rt::sleep(STANDSTILL).await;
        rt::sleep(2 * SECOND).await;
        assert!(!waits.is_done());
        let recall = recalls(&one, 0).await[0];
        acknowledge(&one, &recall, false).await;
        waits.wait().await.unwrap();
        one.call(getattr(ROOT)).await.unwrap();
        assert!(world.chunks.fenced.lock().is_empty());
    });
}

/// The pause doesn't extend the wait for ever.
#[test]
fn a_session_that_stays_silent_after_a_pause_is_evicted() {
    with_a_standstill(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        assert_eq!(one.grants(open_with_lease(ino, Write)).await, [(ino, Write)]);
        let waits = Call::call(&two, open_with_lease(ino, Write)).await;
        two.call(create(ROOT, "b")).await.unwrap();
        waits.wait().await.unwrap();
        assert!(!world.chunks.fenced.lock().is_empty());
    });
}

/// Also for a service that has just started.
#[test]
fn a_returning_session_gets_its_time_after_a_pause() {
    with_a_standstill(|world| async move {
        world.client(1).await.call(getattr(ROOT)).await.unwrap();
        let world = world.restart().await;
        let two = world.client(2).await;
        let waits = Call::call(&two, create(ROOT, "a")).await;
        rt::sleep(STANDSTILL).await;
        rt::sleep(2 * SECOND).await;
        assert!(!waits.is_done());
        let one = Client::new(&world.meta, 1);
        one.call(MetaOp::Register {
            in_use: vec![],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        })
        .await
        .unwrap();
        waits.wait().await.unwrap();
        one.call(getattr(ROOT)).await.unwrap();
        assert!(world.chunks.fenced.lock().is_empty());
        world.meta.stop();
    });
}
