//! Refused connections, which leave the service running.

use super::support::*;
use identity::tls::UnauthenticatedClients;
use identity::{Authority, Credentials, Member, PendingKey, Protection, Validity};
use net::{ClientIdentity, Peer, PeerOptions, ProbeFailure, Security, Server, Tls};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{ClusterMap, Epoch, Errno, NodeId, RevokedClient};

fn assert_refused(server: &Server, security: Security, cause: &str) {
    let error = ask(server, security).unwrap_err();
    assert_eq!(error.errno, Errno::EACCES, "{error}");
    assert!(error.message.contains("node 1") && error.message.contains(cause), "{error}");
    assert!(!error.hint.is_empty());
}

#[test]
fn members_are_known_by_what_they_have_proved() {
    let authority = authority();
    let server = serve(member(&node(&authority, 1)));
    assert_eq!(ask(&server, member(&client(&authority, "a"))).unwrap(), "client/a by tls");
    assert_eq!(ask(&server, member(&node(&authority, 2))).unwrap(), "node/2 by tls");
}

#[test]
fn wrong_peers_are_refused_and_members_still_served() {
    let (ours, theirs) = (authority(), authority());
    let server = serve(member(&node(&ours, 1)));
    let still_served = || assert_eq!(ask(&server, member(&node(&ours, 2))).unwrap(), "node/2 by tls");
    // Of a cluster that claims to be ours. Its client wouldn't accept our server, so here it
    // accepts any.
    let foreign = Security::Tls(Tls::joining(&token(&theirs)).unwrap());
    assert_refused(&server, foreign, "the peer's certificate is refused: it is of another cluster");
    still_served();
    assert_refused(&server, member(&client(&theirs, "a")), "the peer's certificate is refused");
    still_served();
    let stranger = Security::Tls(Tls::joining(&token(&ours)).unwrap());
    assert_refused(&server, stranger, "our certificate was refused");
    still_served();
    let past = Validity { from: now() - 200, until: now() - 100 };
    let expired = ours.issue(&Member::Client("a".into()), past).unwrap();
    assert_refused(&server, member(&expired), "our certificate was refused");
    still_served();
    // The client trusts our server, but its certificate is from the other authority.
    assert_refused(&server, member(&certified_elsewhere(&ours, &theirs)), "our certificate was refused");
    still_served();
    let elsewhere =
        Tls::member(&node(&ours, 2), Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    assert_refused(&server, Security::Tls(elsewhere.to_node(NodeId(7))), "node 1, not the expected one");
    let there = Security::Tls(elsewhere.to_node(NodeId(1)));
    assert_eq!(ask(&server, there).unwrap(), "node/2 by tls");
}

#[test]
fn a_probed_address_must_belong_to_the_node() {
    let authority = authority();
    let server = serve(member(&node(&authority, 1)));
    let probe = |id| {
        let own = Tls::member(&node(&authority, 2), Protection::Encrypted, UnauthenticatedClients::Refused)
            .unwrap();
        let security = Security::Tls(own.to_node(NodeId(id)));
        let identity = ClientIdentity { cluster: CLUSTER.into(), name: "node 2".into(), client: 5 };
        let peer = Peer::new(PeerOptions { security, ..PeerOptions::new("node", vec![], identity) });
        let address = server.addresses()[0];
        rt::block_on(async move { peer.probe(address, 0, TEST_TIME_OUT).await }).unwrap()
    };
    assert_eq!(probe(1).as_deref(), Ok("node 1"));
    match probe(7) {
        Err(ProbeFailure::WrongPeer(cause)) => {
            assert!(cause.contains("node 1, not the expected one"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_is_waited_for_although_another_process_has_one_of_its_addresses() {
    let authority = authority();
    let other = serve(member(&node(&authority, 2)));
    let place = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to_node = |id| {
        let own =
            Tls::member(&client(&authority, "a"), Protection::Encrypted, UnauthenticatedClients::Refused)
                .unwrap();
        Security::Tls(own.to_node(NodeId(id)))
    };
    let addresses = vec![place, other.addresses()[0]];
    let channel = channel_at::<3>(addresses.clone(), to_node(1), TEST_TIME_OUT);
    let never = channel_at::<3>(addresses[1..].to_vec(), to_node(1), TEST_TIME_OUT);
    let server = rt::block_on(async move {
        let mut call = pin!(channel.call(TestRequest { fill: false }, None));
        assert!(rt::timeout(Duration::from_millis(500), call.as_mut()).await.is_none(), "it is waited for");
        let server = serve_at(place, member(&node(&authority, 1)));
        assert_eq!(call.await.unwrap().0, "client/a by tls");
        // Without an address where it may come back, a call doesn't wait.
        assert_eq!(never.call(TestRequest { fill: false }, None).await.unwrap_err().errno, Errno::EACCES);
        server
    })
    .unwrap();
    server.stop();
}

/// A client of `theirs` that trusts `ours`.
fn certified_elsewhere(ours: &Authority, theirs: &Authority) -> Credentials {
    let key = PendingKey::generate().unwrap();
    let chain_of = |authority: &Authority| {
        authority.certify(key.request(), &Member::Client("a".into()), Validity::of_client(now())).unwrap()
    };
    let (our_chain, their_chain) = (chain_of(ours), chain_of(theirs));
    let second = |chain: &str| chain.rfind("-----BEGIN").unwrap();
    let mixed = [&their_chain[..second(&their_chain)], &our_chain[second(&our_chain)..]].concat();
    key.certified(&mixed).unwrap()
}

#[test]
fn a_removed_member_is_refused() {
    let authority = authority();
    let removed = Arc::new(AtomicBool::new(false));
    let is_removed = removed.clone();
    let tls =
        Tls::member(&node(&authority, 1), Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let server = serve(Security::Tls(tls.with_admission_check(move |identity| {
        identity.role != Member::Client("a".into()) || !is_removed.load(Ordering::SeqCst)
    })));
    let (a, b) = (client(&authority, "a"), client(&authority, "b"));
    assert_eq!(ask(&server, member(&a)).unwrap(), "client/a by tls");
    removed.store(true, Ordering::SeqCst);
    assert_refused(&server, member(&a), "the server refuses this member");
    let error = ask(&server, member(&a)).unwrap_err();
    assert!(
        error.message.contains("client/a, certificate ") && error.message.contains("was removed"),
        "{error}"
    );
    assert!(error.hint.contains("weft cluster token --client"), "{}", error.hint);
    assert_eq!(ask(&server, member(&b)).unwrap(), "client/b by tls");
}

/// A client's certificate with an issue number.
fn numbered(authority: &Authority, name: &str, number: u64) -> Credentials {
    authority.issue_to_client(name, Validity::of_client(now()), number).unwrap()
}

#[test]
fn a_revoked_client_is_refused_on_the_connection_that_it_has() {
    let authority = authority();
    let security = member(&node(&authority, 1));
    let server = serve(security.clone());
    let (a, b) = (numbered(&authority, "a", 5), numbered(&authority, "b", 6));
    let revoked = RevokedClient { name: "a".into(), until: 5 };
    let map = ClusterMap { epoch: Epoch(7), revoked: vec![revoked], ..ClusterMap::default() };
    let (of_a, of_b) =
        (channel::<3>(&server, member(&a), TEST_TIME_OUT), channel::<3>(&server, member(&b), TEST_TIME_OUT));
    let ask_caller = async |channel: &net::Channel<TestRequest<3>, TestReply>| {
        channel.call(TestRequest { fill: false }, None).await.map(|TestReply(text)| text)
    };
    let following = security.clone();
    let asked = async move {
        assert_eq!(ask_caller(&of_a).await.unwrap(), "client/a by tls");
        assert_eq!(ask_caller(&of_b).await.unwrap(), "client/b by tls");
        following.follow(&Arc::new(map));
        let error = ask_caller(&of_a).await.unwrap_err();
        assert!(error.errno == Errno::EACCES && error.message.contains("client/a was revoked"), "{error}");
        assert!(error.hint.contains("weft client add a"), "{error}");
        assert_eq!(ask_caller(&of_b).await.unwrap(), "client/b by tls");
    };
    rt::block_on(asked).unwrap();
    // It can't reconnect either, unless it has a later certificate.
    assert_refused(&server, member(&a), "the server refuses this member");
    assert_eq!(ask(&server, member(&numbered(&authority, "a", 6))).unwrap(), "client/a by tls");
    // A certificate without a number is older than any with a number.
    assert_refused(&server, member(&client(&authority, "a")), "the server refuses this member");
    security.follow(&Arc::new(ClusterMap { epoch: Epoch(8), ..ClusterMap::default() }));
    assert_eq!(ask(&server, member(&a)).unwrap(), "client/a by tls");
}

#[test]
fn a_connection_applies_later_revocation_lists_and_ignores_earlier_ones() {
    let authority = authority();
    let security = member(&node(&authority, 1));
    let server = serve(security.clone());
    let channel = channel::<3>(&server, member(&numbered(&authority, "a", 5)), TEST_TIME_OUT);
    let list = |epoch, name: &str| {
        let revoked = vec![RevokedClient { name: name.into(), until: 5 }];
        Arc::new(ClusterMap { epoch: Epoch(epoch), revoked, ..ClusterMap::default() })
    };
    let (of_another, of_this) = (list(6, "b"), list(7, "a"));
    let asked = async move {
        security.follow(&of_another);
        assert_eq!(
            channel.call(TestRequest { fill: false }, None).await,
            Ok(TestReply("client/a by tls".into()))
        );
        security.follow(&of_this);
        let refused = channel.call(TestRequest { fill: false }, None).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EACCES, "{refused}");
        // An older map that arrives late doesn't undo a revocation.
        security.follow(&of_another);
        let refused = channel.call(TestRequest { fill: false }, None).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EACCES, "{refused}");
    };
    rt::block_on(asked).unwrap();
}

#[test]
fn a_connection_ends_with_its_certificate() {
    let authority = authority();
    let mut limits = net::ServerLimits::default();
    // The interval at which a connection is checked depends on it.
    limits.liveness.ping_after = Duration::from_millis(40);
    let server = serve_within("127.0.0.1:0".parse().unwrap(), member(&node(&authority, 1)), limits);
    let validity = |until| Validity { from: now() - 100, until };
    let short = authority.issue_to_client("a", validity(now() + 3), 1).unwrap();
    let tls = Tls::member(&short, Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let lasting = channel::<3>(&server, Security::Tls(tls.clone()), TEST_TIME_OUT);
    let ask = async move {
        // While no other certificate was shown in a new handshake.
        while lasting.call(TestRequest { fill: false }, None).await.map_err(|error| error.errno)
            != Err(Errno::EACCES)
        {
            rt::sleep(Duration::from_millis(20)).await;
        }
        assert!(now() >= short.identity().expires);
        tls.renew(&authority.issue_to_client("a", validity(now() + 300), 2).unwrap()).unwrap();
        // A link that was refused retries after a while.
        while lasting.call(TestRequest { fill: false }, None).await.is_err() {
            rt::sleep(Duration::from_millis(20)).await;
        }
    };
    rt::block_on(ask).unwrap();
}

#[test]
fn new_connections_use_a_renewed_certificate() {
    let authority = authority();
    let tls =
        Tls::member(&node(&authority, 1), Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let (heard, hears) = std::sync::mpsc::channel();
    let server = serve(Security::Tls(tls.with_admission_check(move |identity| {
        heard.send(identity.issue_number()).unwrap();
        true
    })));
    let own =
        Tls::member(&numbered(&authority, "a", 5), Protection::Encrypted, UnauthenticatedClients::Refused)
            .unwrap();
    let to_node = own.to_node(NodeId(1));
    assert_eq!(ask(&server, Security::Tls(to_node.clone())).unwrap(), "client/a by tls");
    own.renew(&numbered(&authority, "a", 9)).unwrap();
    assert_eq!(ask(&server, Security::Tls(to_node)).unwrap(), "client/a by tls");
    let shown: Vec<Option<u64>> = hears.try_iter().collect();
    assert_eq!((shown.first(), shown.last()), (Some(&Some(5)), Some(&Some(9))));
}

/// However long the refusals last: a lasting refusal isn't reported as a time-out.
#[test]
fn a_lasting_refusal_is_not_reported_as_a_time_out() {
    let authority = authority();
    let past = Validity { from: now() - 200, until: now() - 100 };
    let expired = authority.issue(&Member::Client("a".into()), past).unwrap();
    let server = serve(member(&node(&authority, 1)));
    let timeout = Duration::from_millis(300);
    let channel = channel::<3>(&server, member(&expired), timeout);
    let ask = async move {
        let began_ns = rt::monotonic_ns();
        let mut asked = 0;
        // A busy machine may take longer for the first one.
        while channel.call(TestRequest { fill: false }, None).await.unwrap_err().errno == Errno::ETIMEDOUT {}
        // Longer than a call waits for an unreachable peer, and than the backoff has grown.
        while rt::monotonic_ns() - began_ns < Duration::from_secs(4).as_nanos() as u64 {
            let error = channel.call(TestRequest { fill: false }, None).await.unwrap_err();
            assert_eq!(error.errno, Errno::EACCES, "after {asked} others: {error}");
            assert!(error.hint.contains("weft cluster token --client"), "{}", error.hint);
            asked += 1;
            rt::sleep(Duration::from_millis(20)).await;
        }
    };
    rt::block_on(ask).unwrap();
}

#[test]
fn a_server_that_is_no_node_of_ours_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let past = Validity { from: now() - 200, until: now() - 100 };
    let servers =
        [client(&ours, "impostor"), node(&theirs, 1), ours.issue(&Member::Node(NodeId(1)), past).unwrap()];
    for credentials in servers {
        let server = serve(member(&credentials));
        assert_refused(&server, member(&client(&ours, "a")), "the peer's certificate is refused");
    }
}

#[test]
fn an_unauthenticated_client_reaches_only_management_and_only_if_allowed() {
    let authority = authority();
    let server = serve(tls(&node(&authority, 1), Protection::HandshakeOnly, UnauthenticatedClients::MayJoin));
    let stranger = || Security::Tls(Tls::joining(&token(&authority)).unwrap());
    // Encrypted in any case: it carries the token's secret.
    assert_eq!(ask_service::<1>(&server, stranger()).unwrap(), "nobody by tls");
    let error = ask_service::<3>(&server, stranger()).unwrap_err();
    assert_eq!(error.errno, Errno::EACCES, "{error}");
    assert!(error.message.contains("has no certificate"), "{error}");
    assert_eq!(ask(&server, member(&client(&authority, "a"))).unwrap(), "client/a by tls");
}

#[test]
fn clients_without_tls_are_refused_by_a_tls_server() {
    let authority = authority();
    let server = serve(member(&node(&authority, 1)));
    let channel = channel::<3>(&server, Security::Plain, Duration::from_millis(300));
    let error = rt::block_on(async move { channel.call(TestRequest { fill: false }, None).await }).unwrap();
    assert_eq!(error.unwrap_err().errno, Errno::ETIMEDOUT);
    assert_eq!(ask(&server, member(&client(&authority, "a"))).unwrap(), "client/a by tls");
}

/// Garbage, a handshake that is cut off, one that never continues.
#[test]
fn rude_connections_leave_the_service_alive() {
    let authority = authority();
    let server = serve(member(&node(&authority, 1)));
    let address = server.addresses()[0];
    // The beginning of a handshake record that announces more bytes.
    let silent: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
            stream
        })
        .collect();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100_000], &[22; 100_000], &[0xff; 7], b""] {
        let mut stream = TcpStream::connect(address).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 100, "more than an alert was said");
        assert_eq!(ask(&server, member(&client(&authority, "a"))).unwrap(), "client/a by tls");
    }
    // Handshakes that never continue time out.
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert_eq!(ask(&server, member(&client(&authority, "a"))).unwrap(), "client/a by tls");
}
