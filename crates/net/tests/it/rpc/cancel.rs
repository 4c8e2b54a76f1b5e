//! Calls whose callers have stopped waiting.

use crate::rpc::support::{TEST_TIME_OUT, TestReply, TestRequest, TestService, peer_of, serve};
use crate::rpc::until::until;
use crate::rpc::way::ConnectionMode;
use net::Channel;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub fn a_dropped_wait_is_cancelled_at_the_server_and_frees_its_slot(way: ConnectionMode) {
    let service = TestService::open();
    let server = serve(way, &service);
    let peer = peer_of(way, server.addresses().to_vec(), TEST_TIME_OUT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        // More in total than may be in flight.
        for _ in 0..3 {
            let waits = (0..150).map(|number| channel.call(TestRequest::Wait(number), None)).collect();
            let cut = rt::timeout(Duration::from_millis(100), rt::join_all(waits));
            assert!(cut.await.is_none());
            until(|| service.waiting.load(Ordering::SeqCst) == 0).await;
        }
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        assert_eq!(peer.status().links[0].connections, 1);
    })
    .unwrap();
}

pub fn requests_that_do_not_wait_are_not_cancelled(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve(way, &service);
    let peer = peer_of(way, server.addresses().to_vec(), TEST_TIME_OUT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        {
            let mut call = pin!(channel.call(TestRequest::Count(1), None));
            let mut begun = pin!(until(|| service.begun.load(Ordering::SeqCst) == 1));
            poll_fn(|cx| {
                assert!(call.as_mut().poll(cx).is_pending());
                begun.as_mut().poll(cx)
            })
            .await; // And the call is dropped.
        }
        service.gate.set();
        until(|| service.counts.lock().get(&1) == Some(&1)).await;
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        assert_eq!(peer.status().links[0].connections, 1);
    })
    .unwrap();
}
