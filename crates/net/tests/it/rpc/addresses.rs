//! Peers with several addresses, and peers that refuse the client.

use crate::rpc::support::{
    TestReply, TestRequest, TestService, identity, localhost, peer_of, peer_options, serve, serve_at,
    server_options,
};
use crate::rpc::way::ConnectionMode;
use net::{
    Channel, ClientIdentity, Lookup, Networks, Peer, PeerOptions, ProbeFailure, Router, Server, ServerOptions,
};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use types::Errno;

const LIMIT: Duration = Duration::from_secs(30);

pub fn the_next_address_is_used_when_the_first_is_unreachable(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let alive = server.addresses()[0];
    let dead = TcpListener::bind(localhost()).unwrap().local_addr().unwrap();
    let peer = peer_of(way, vec![dead, alive], LIMIT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        let status = peer.status();
        assert_eq!((status.name.as_str(), &status.addresses[..]), ("storage node 3", &[dead, alive][..]));
        let link = &status.links[0];
        assert_eq!(link.connected, Some((alive.into(), way.transport())));
        assert_eq!(link.failures.len(), 1);
        assert_eq!(link.failures[0].address, dead.into());
        assert!(link.failures[0].reason.contains("refused"), "{link:?}");
        assert!(link.round_trip.is_some());
        assert_eq!((link.connections, link.requests), (1, 1));
    })
    .unwrap();
}

pub fn new_addresses_are_used_by_calls_that_already_wait(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let alive = server.addresses().to_vec();
    let dead = TcpListener::bind(localhost()).unwrap().local_addr().unwrap();
    let peer = peer_of(way, vec![dead], LIMIT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(30)).await;
            peer.set_addresses(alive);
        });
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
    })
    .unwrap();
}

pub fn addresses_are_looked_up_before_each_attempt(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let alive = server.addresses().to_vec();
    let dead = TcpListener::bind(localhost()).unwrap().local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    // Like a name that resolves to another address after a while, and can't be resolved in between.
    let lookup = Lookup::new(move || match count.fetch_add(1, Ordering::Relaxed) {
        0 => vec![dead],
        1 => vec![],
        _ => alive.clone(),
    });
    let options = PeerOptions { lookup: Some(lookup), timeout: LIMIT, ..peer_options(way, vec![dead]) };
    let channel: Channel<TestRequest, TestReply> = Channel::remote(Peer::new(options));
    rt::block_on(
        async move { assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0))) },
    )
    .unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

pub fn a_lookup_that_hangs_does_not_delay_calls(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let (ends, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let lookup = Lookup::new(move || {
        let _ = wait.lock().unwrap().recv();
        vec![]
    });
    let addresses = server.addresses().to_vec();
    let options = PeerOptions { lookup: Some(lookup), timeout: LIMIT, ..peer_options(way, addresses) };
    let channel: Channel<TestRequest, TestReply> = Channel::remote(Peer::new(options));
    rt::block_on(
        async move { assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0))) },
    )
    .unwrap();
    drop(ends);
}

pub fn connections_to_former_addresses_are_ended(way: ConnectionMode) {
    let server = serve_two(way);
    let [first, second] = server.addresses()[..] else { panic!("{:?}", server.addresses()) };
    let peer = peer_of(way, vec![first], LIMIT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        assert_eq!(peer.status().links[0].connected, Some((first.into(), way.transport())));
        peer.set_addresses(vec![second, first]);
        assert_eq!(channel.call(TestRequest::Sum(2), None).await, Ok(TestReply(2, 0)));
        assert_eq!(peer.status().links[0].connections, 1, "one that it still has is kept");
        peer.set_addresses(vec![second]);
        let moved = async {
            while peer.status().links[0].connected != Some((second.into(), way.transport())) {
                assert_eq!(channel.call(TestRequest::Sum(3), None).await, Ok(TestReply(3, 0)));
                rt::yield_now().await;
            }
        };
        assert!(rt::timeout(LIMIT, moved).await.is_some(), "{:?}", peer.status());
    })
    .unwrap();
}

pub fn an_address_can_be_probed(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let dead = TcpListener::bind(localhost()).unwrap().local_addr().unwrap();
    // Accepts connections, and sends nothing.
    let mute = TcpListener::bind(localhost()).unwrap();
    let peer = peer_of(way, vec![], LIMIT);
    rt::block_on(async move {
        let alive = server.addresses()[0];
        for core in [0, 0, 1] {
            assert_eq!(peer.probe(alive, core, LIMIT).await.as_deref(), Ok("storage node 3"));
        }
        assert_eq!(peer.probe(dead, 0, LIMIT).await, Err(ProbeFailure::Refused));
        let mute = mute.local_addr().unwrap();
        assert_eq!(peer.probe(mute, 0, Duration::from_millis(100)).await, Err(ProbeFailure::TimedOut));
        assert!(peer.status().links.is_empty(), "nothing is called");
    })
    .unwrap();
}

pub fn a_call_that_times_out_reports_why(way: ConnectionMode) {
    let dead = TcpListener::bind(localhost()).unwrap().local_addr().unwrap();
    let peer = peer_of(way, vec![dead], LIMIT);
    rt::block_on(async move {
        assert_eq!(peer.unreachable_reason(Duration::ZERO), None, "nobody has asked it for anything");
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        rt::spawn(async move { drop(channel.call(TestRequest::Sum(1), None).await) });
        let told = async {
            loop {
                match peer.unreachable_reason(Duration::from_millis(1)) {
                    Some(cause) if cause.contains("refused") => return cause,
                    _ => rt::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let cause = rt::timeout(LIMIT, told).await.unwrap();
        assert!(cause.contains(&dead.to_string()), "{cause}");
        assert_eq!(peer.unreachable_reason(LIMIT), None, "not for so long");
        let server = serve_at(way, dead, &TestService::open());
        let reached = async {
            while peer.unreachable_reason(Duration::ZERO).is_some() {
                rt::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(rt::timeout(LIMIT, reached).await.is_some(), "{:?}", peer.status());
        drop(server);
    })
    .unwrap();
}

pub fn a_client_of_another_cluster_is_refused_at_once(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let other = ClientIdentity { cluster: "another".into(), ..identity() };
    let peer = Peer::new(PeerOptions { identity: other, ..peer_options(way, server.addresses().to_vec()) });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        let error = channel.call(TestRequest::Sum(1), None).await.unwrap_err();
        assert_eq!(error.errno, Errno::EACCES);
        assert!(error.message.contains("belongs to cluster"), "{error}");
        assert!(peer.status().links[0].failures[0].reason.contains("refused: storage node 3 belongs"));
    })
    .unwrap();
}

pub fn each_core_has_a_connection_of_its_own(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let peer = peer_of(way, server.addresses().to_vec(), LIMIT);
    let all = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..3)
        .map(|index| {
            let met = all.clone();
            let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
            let config =
                rt::CoreConfig { name: format!("client-{index}"), cpu: Some(index % 2), batch: false };
            rt::start_core(config, move || async move {
                for number in 0..100 {
                    assert_eq!(channel.call(TestRequest::Sum(number), None).await, Ok(TestReply(number, 0)));
                }
                met.wait();
                met.wait();
            })
            .unwrap()
        })
        .collect();
    all.wait(); // All have called, and ...
    let links = peer.status().links;
    assert_eq!((links.len(), links.iter().map(|link| link.requests).sum::<u64>()), (3, 300));
    assert!(links.iter().all(|link| link.connections == 1));
    all.wait(); // ... now they may end.
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(peer.status().links.is_empty(), "their cores have ended");
}

/// A server on two addresses, as on a machine with two network cards.
fn serve_two(way: ConnectionMode) -> Arc<Server> {
    let listen = ["127.0.0.1:0", "127.0.0.2:0"].map(|address| address.parse().unwrap()).to_vec();
    let options = ServerOptions { listen, ..server_options(way, localhost()) };
    Server::start(options, Router::new().with::<TestRequest, TestReply>(TestService::open())).unwrap()
}

fn peer_over(way: ConnectionMode, server: &Server, networks: &[&str], timeout: Duration) -> Arc<Peer> {
    let networks = Networks::parse(&networks.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    Peer::new(PeerOptions { networks, timeout, ..peer_options(way, server.addresses().to_vec()) })
}

pub fn only_addresses_in_the_networks_are_used(way: ConnectionMode) {
    let server = serve_two(way);
    let [first, second] = server.addresses()[..] else { panic!("{:?}", server.addresses()) };
    let peer = peer_over(way, &server, &["127.0.0.2/32"], LIMIT);
    let lost = peer_over(way, &server, &["10.0.0.0/8", "fd00::/8"], Duration::from_millis(300));
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        let status = peer.status();
        assert_eq!(status.links[0].connected, Some((second.into(), way.transport())));
        assert_eq!(status.unused.len(), 1);
        assert_eq!(status.unused[0].address, first.into());
        assert!(status.unused[0].reason.contains("127.0.0.2/32"), "{status:?}");

        let channel: Channel<TestRequest, TestReply> = Channel::remote(lost.clone());
        let error = channel.call(TestRequest::Sum(1), None).await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        assert!(
            error.message.contains("none of its addresses is in the networks 10.0.0.0/8, fd00::/8"),
            "{error}"
        );
    })
    .unwrap();
}

pub fn cores_spread_over_addresses_that_are_equally_good(way: ConnectionMode) {
    let server = serve_two(way);
    for (networks, spread) in
        [(vec!["127.0.0.1/32,127.0.0.2/32"], 2), (vec!["127.0.0.1/32", "127.0.0.2/32"], 4), (vec![], 4)]
    {
        let peer = peer_over(way, &server, &networks, LIMIT);
        let all = Arc::new(Barrier::new(5));
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (met, channel) = (all.clone(), Channel::<TestRequest, TestReply>::remote(peer.clone()));
                let config = rt::CoreConfig { name: format!("client-{index}"), ..rt::CoreConfig::default() };
                rt::start_core(config, move || async move {
                    channel.call(TestRequest::Sum(1), None).await.unwrap();
                    met.wait();
                    met.wait();
                })
                .unwrap()
            })
            .collect();
        all.wait();
        let first = Some((server.addresses()[0].into(), way.transport()));
        let links = peer.status().links;
        all.wait();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let at_first = links.iter().filter(|link| link.connected == first).count();
        assert_eq!((links.len(), at_first), (4, spread), "{networks:?}: {links:?}");
    }
}
