//! Capabilities expire by the cluster's time, which advances independently of the time of day on
//! management's machine.

use crate::support::Cluster;
use rt::sim::World;
use std::time::Duration;
use wire::{MgmtReply, MgmtRequest};

const HOUR_NS: i64 = 3600 * 1_000_000_000;

#[test]
fn setting_the_clock_does_not_change_cluster_time() {
    let mut world = World::new(7);
    let host = world.add_host("management");
    let start = async {
        let cluster = Cluster::new().await;
        let node = cluster.join("a", 7501).await;
        let register = MgmtRequest::Register(cluster.registration(node, 1, 7501, &[]));
        let MgmtReply::Registered(told) = cluster.ask(register).await.unwrap() else { panic!("no answer") };
        assert_eq!(told.time_s, rt::now().secs);
        (cluster, node, told.time_s)
    };
    let (cluster, node, began_s) = world.run(host, start).unwrap();
    for (passed_s, ahead_ns) in [(10, HOUR_NS), (20, -HOUR_NS)] {
        world.set_clock(host, ahead_ns, 0);
        let cluster = cluster.clone();
        let beat = async move {
            rt::sleep(Duration::from_secs(10)).await;
            let reply = cluster.ask(cluster.heartbeat(node, 1, &[])).await.unwrap();
            let MgmtReply::Alive(alive) = reply else { panic!("{reply:?}") };
            (alive.time_s - began_s, rt::now().secs - began_s)
        };
        let (told_s, shown_s) = world.run(host, beat).unwrap();
        assert!(shown_s.abs() > 3000, "the clock is set");
        assert!((passed_s..passed_s + 5).contains(&told_s), "{told_s} s have passed");
    }
}
