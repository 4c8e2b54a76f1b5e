//! Connections that break.

use crate::rpc::proxy::Proxy;
use crate::rpc::raw::Raw;
use crate::rpc::support::{TEST_TIME_OUT, TestReply, TestRequest, TestService, pattern, peer_of, serve, sum};
use crate::rpc::until::until;
use crate::rpc::way::ConnectionMode;
use net::Channel;
use rt::IoBuf;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::Errno;
use wire::frame::FrameKind;

/// A call whose connection is cut while the service still executes it is retransmitted only when
/// that execution has ended.
fn no_copy_runs_beside_an_older_one(way: ConnectionMode, cut: fn(&Proxy)) {
    let service = TestService::new();
    let server = serve(way, &service);
    let proxy = Proxy::to(server.addresses()[0]);
    let seen = service.clone();
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> =
            Channel::remote(peer_of(way, vec![proxy.address], TEST_TIME_OUT));
        let (answer, call) = (Rc::new(Cell::new(None)), channel.clone());
        let answered = answer.clone();
        rt::spawn(async move { answered.set(Some(call.call(TestRequest::Count(1), None).await)) });
        until(|| seen.begun.load(Ordering::SeqCst) == 1).await;
        for cuts in 1..=3 {
            cut(&proxy);
            until(|| proxy.connections() > cuts).await;
            rt::sleep(Duration::from_millis(30)).await; // The hello arrives.
            assert_eq!(seen.begun.load(Ordering::SeqCst), 1, "the older copy still runs");
        }
        seen.gate.set();
        until(|| {
            let got = answer.take();
            let there = got.is_some();
            answer.set(got);
            there
        })
        .await;
        assert_eq!(answer.take(), Some(Ok(TestReply(1, 2))), "it was repeated");
    })
    .unwrap();
    assert_eq!(service.most.load(Ordering::SeqCst), 1, "never two at a time");
}

pub fn a_retransmission_never_runs_beside_the_original_when_both_ends_notice(way: ConnectionMode) {
    no_copy_runs_beside_an_older_one(way, Proxy::cut);
}

pub fn a_retransmission_never_runs_beside_the_original_when_only_the_client_notices(way: ConnectionMode) {
    no_copy_runs_beside_an_older_one(way, Proxy::cut_client);
}

pub fn a_request_that_hangs_blocks_reconnection_only_until_its_time_out(way: ConnectionMode) {
    let service = TestService::new(); // The gate is closed.
    let server = serve(way, &service);
    let proxy = Proxy::to(server.addresses()[0]);
    rt::block_on(async move {
        let timeout = Duration::from_secs(3);
        let hung: Channel<TestRequest, TestReply> =
            Channel::remote(peer_of(way, vec![proxy.address], timeout));
        let asks = hung.clone();
        rt::spawn(async move { drop(asks.call(TestRequest::Count(1), None).await.unwrap_err()) });
        until(|| service.begun.load(Ordering::SeqCst) == 1).await;
        proxy.cut();
        let mut attempts = 0;
        while let Err(error) = hung.call(TestRequest::Sum(2), None).await {
            assert_eq!(error.errno, Errno::ETIMEDOUT);
            attempts += 1;
            assert!(attempts < 10, "the hung request keeps its client out");
        }
        assert_eq!(service.counts.lock().len(), 0, "it still hangs");
        assert_eq!(service.begun.load(Ordering::SeqCst), 1, "and was not repeated beside itself");
        service.gate.set();
        until(|| service.counts.lock().get(&1) == Some(&1)).await;
    })
    .unwrap();
}

pub fn bulk_transfers_survive_cuts(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let address = server.addresses()[0];
    rt::block_on(async move {
        let proxy = Proxy::to(address);
        let peer = peer_of(way, vec![proxy.address], TEST_TIME_OUT);
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        let done = Rc::new(Cell::new(0));
        for number in 0..30u64 {
            let (channel, done) = (channel.clone(), done.clone());
            rt::spawn(async move {
                let buf = IoBuf::alloc(1 << 20);
                assert_eq!(
                    channel.call(TestRequest::Fill(number), Some(buf.clone())).await,
                    Ok(TestReply(number, 1 << 20))
                );
                assert!(buf.as_slice() == pattern(number, 1 << 20));
                let expected = sum(buf.as_slice());
                assert_eq!(
                    channel.call(TestRequest::Sum(number), Some(buf)).await,
                    Ok(TestReply(number, expected))
                );
                done.set(done.get() + 1);
            });
        }
        // Only established connections count: on a busy machine a cut could otherwise come before
        // the end of the handshake.
        let established = || peer.status().links.first().map_or(0, |link| link.connections);
        for cuts in 0..5 {
            until(|| established() > cuts || done.get() == 30).await;
            rt::sleep(Duration::from_millis(10)).await;
            proxy.cut();
        }
        until(|| done.get() == 30).await;
        let link = peer.status().links.remove(0);
        assert!(link.connections > 1);
        assert!(link.bytes_sent > 30 << 20 && link.bytes_received > 30 << 20, "{link:?}");
        assert!(link.requests >= 60);
    })
    .unwrap();
}

pub fn an_older_connection_is_refused(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let address = server.addresses()[0];
    let mut newer = Raw::connect(way, address);
    newer.hello(1, 5);
    assert_eq!(newer.receive().unwrap().0.kind, FrameKind::Welcome);
    let mut older = Raw::connect(way, address);
    older.hello(1, 4);
    assert_eq!(older.receive().unwrap().0.kind, FrameKind::Error);
    assert!(older.receive().is_none());
    let mut newest = Raw::connect(way, address);
    newest.hello(1, 6);
    assert_eq!(newest.receive().unwrap().0.kind, FrameKind::Welcome);
    assert!(newer.receive().is_none(), "it was replaced");
}
