//! Calls that aren't answered.

use crate::rpc::support::{TestReply, TestRequest, TestService, localhost, pattern, peer_of, serve, sum};
use crate::rpc::until::until;
use crate::rpc::way::ConnectionMode;
use net::Channel;
use rt::IoBuf;
use std::future::poll_fn;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::Errno;

/// Longer than a busy machine takes for the steps before it.
const SHORT: Duration = Duration::from_secs(3);

pub fn a_call_that_is_never_answered_times_out_and_the_connection_stays(way: ConnectionMode) {
    let service = TestService::new(); // The gate is closed.
    let server = serve(way, &service);
    let address = server.addresses()[0];
    let peer = peer_of(way, vec![address], SHORT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        let error = channel.call(TestRequest::Count(1), Some(IoBuf::alloc(100_000))).await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        let expected = format!("storage node 3 at {address} has not answered within 3s");
        assert_eq!(error.message, expected);
        assert_eq!(channel.call(TestRequest::Sum(2), None).await, Ok(TestReply(2, 0)));
        // Its late answer has no effect on other calls.
        service.gate.set();
        until(|| service.counts.lock().len() == 1).await;
        assert_eq!(channel.call(TestRequest::Sum(3), None).await, Ok(TestReply(3, 0)));
        assert_eq!(peer.status().links[0].connections, 1);
    })
    .unwrap();
}

pub fn calls_that_timed_out_release_their_bytes(way: ConnectionMode) {
    let service = TestService::new(); // The gate is closed.
    let server = serve(way, &service);
    let peer = peer_of(way, server.addresses().to_vec(), 2 * SHORT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        // As many as may be in flight.
        let hung =
            (0..64).map(|number| channel.call(TestRequest::Count(number), Some(IoBuf::alloc(1 << 20))));
        let answers = rt::join_all(hung.collect()).await;
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap_err().errno == Errno::ETIMEDOUT));
        assert_eq!(service.begun.load(Ordering::SeqCst), 64);
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        let data = pattern(2, 1 << 20);
        let answer = channel.call(TestRequest::Sum(2), Some(IoBuf::from_slice(&data))).await;
        assert_eq!(answer, Ok(TestReply(2, sum(&data))));
        assert_eq!(peer.status().links[0].connections, 1);
        service.gate.set();
        until(|| service.counts.lock().len() == 64).await;
    })
    .unwrap();
}

pub fn requests_beyond_the_credits_wait_and_time_out(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve(way, &service);
    let peer = peer_of(way, server.addresses().to_vec(), SHORT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        let calls = (0..300).map(|number| channel.call(TestRequest::Count(number), None)).collect();
        let answers = rt::join_all(calls).await;
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap_err().errno == Errno::ETIMEDOUT));
        assert_eq!(service.begun.load(Ordering::SeqCst), 256, "that many were in flight");
        // The server still executes them, so they still count.
        assert_eq!(channel.call(TestRequest::Sum(1), None).await.unwrap_err().errno, Errno::ETIMEDOUT);
        service.gate.set();
        until(|| service.counts.lock().len() == 256).await;
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        assert_eq!(peer.status().links[0].connections, 1);
    })
    .unwrap();
}

/// All of them wait at the service: more than it accepts of other requests.
pub fn waiting_calls_do_not_use_the_credits_of_others(way: ConnectionMode) {
    const WAITS: usize = 1000;
    let service = TestService::open();
    let server = serve(way, &service);
    let peer = peer_of(way, server.addresses().to_vec(), SHORT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        {
            let waits =
                (0..WAITS as u64).map(|number| channel.call(TestRequest::Wait(number), None)).collect();
            let (mut all, waiting) = (pin!(rt::join_all(waits)), &service.waiting);
            let mut begun = pin!(until(|| waiting.load(Ordering::SeqCst) == WAITS));
            poll_fn(|cx| {
                assert!(all.as_mut().poll(cx).is_pending());
                begun.as_mut().poll(cx)
            })
            .await;
            assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
            assert_eq!(waiting.load(Ordering::SeqCst), WAITS);
        }
        until(|| service.waiting.load(Ordering::SeqCst) == 0).await;
        assert_eq!(peer.status().links[0].requests, WAITS as u64 + 1);
    })
    .unwrap();
}

pub fn an_unreachable_peer_is_named_with_the_reason(way: ConnectionMode) {
    let gone = TcpListener::bind(localhost()).unwrap().local_addr().unwrap();
    let mute = TcpListener::bind(localhost()).unwrap();
    let mute_address = mute.local_addr().unwrap();
    let cases = [
        (
            // Long enough for the refusal to arrive, even on a busy machine.
            Duration::from_secs(2),
            vec![gone],
            format!("storage node 3 has been unreachable for 2s; {gone}: Connection refused (os error 111)"),
        ),
        (
            Duration::from_millis(100),
            vec![mute_address],
            "storage node 3 has been unreachable for 100ms: no address has answered".into(),
        ),
        (
            Duration::from_millis(100),
            vec![],
            "storage node 3 has been unreachable for 100ms: no address is known".into(),
        ),
    ];
    for (timeout, addresses, expected) in cases {
        rt::block_on(async move {
            let channel: Channel<TestRequest, TestReply> = Channel::remote(peer_of(way, addresses, timeout));
            let calls = [TestRequest::Sum(1), TestRequest::Wait(1)].map(|ask| channel.call(ask, None));
            for answer in rt::join_all(calls.into()).await {
                let error = answer.unwrap_err();
                assert_eq!((error.errno, error.message.as_ref()), (Errno::ETIMEDOUT, expected.as_str()));
            }
        })
        .unwrap();
    }
}

pub fn a_wait_outlasts_the_time_out(way: ConnectionMode) {
    let service = TestService::open();
    let server = serve(way, &service);
    let timeout = Duration::from_millis(200);
    let channel: Channel<TestRequest, TestReply> =
        Channel::remote(peer_of(way, server.addresses().to_vec(), timeout));
    rt::block_on(async move {
        // A busy machine may take longer to connect.
        while channel.call(TestRequest::Sum(1), None).await.is_err() {}
        assert!(rt::timeout(5 * timeout, channel.call(TestRequest::Wait(1), None)).await.is_none());
        until(|| service.waiting.load(Ordering::SeqCst) == 0).await;
    })
    .unwrap();
}
