//! Calls that succeed.

use crate::rpc::proxy::Proxy;
use crate::rpc::raw::Raw;
use crate::rpc::support::{
    TEST_TIME_OUT, TestReply, TestRequest, TestService, channel_to, localhost, pattern, peer_of, serve, sum,
};
use crate::rpc::until::until;
use crate::rpc::way::ConnectionMode;
use net::Channel;
use rt::{IoBuf, careless};
use std::cell::Cell;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::Errno;
use wire::Message;
use wire::frame::{FrameKind, Header};

/// Runs `count` tasks and waits for all of them.
async fn all<F: Future<Output = ()> + 'static>(count: usize, task: impl Fn(usize) -> F) {
    let left = Rc::new(Cell::new(count));
    let done = Arc::new(rt::sync::Event::new());
    for index in 0..count {
        let (work, left, done) = (task(index), left.clone(), done.clone());
        rt::spawn(async move {
            work.await;
            left.set(left.get() - 1);
            if left.get() == 0 {
                done.set();
            }
        });
    }
    done.wait().await;
}

pub fn an_answer_comes_back(way: ConnectionMode) {
    let service = TestService::open();
    let server = serve(way, &service);
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        assert_eq!(channel.call(TestRequest::Sum(5), None).await, Ok(TestReply(5, 0)));
        let payload = IoBuf::from_slice(b"hello").slice(0..5);
        assert_eq!(channel.call(TestRequest::Sum(6), Some(payload)).await, Ok(TestReply(6, sum(b"hello"))));
        assert_eq!(channel.call(TestRequest::Who(1), None).await, Ok(TestReply(1, 8)));
        let buf = IoBuf::alloc(10_000);
        assert_eq!(channel.call(TestRequest::Fill(3), Some(buf.clone())).await, Ok(TestReply(3, 10_000)));
        assert!(buf.as_slice() == pattern(3, 10_000));
    })
    .unwrap();
}

pub fn errors_keep_their_message_and_hint(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        let error = channel.call(TestRequest::Fail(4), None).await.unwrap_err();
        assert_eq!(error.errno, Errno::ENOSPC);
        assert_eq!(error.to_string(), "number 4 is full; hint: take another");
        // Also with a buffer to be filled, and with one that was sent.
        let error = channel.call(TestRequest::Fail(5), Some(IoBuf::alloc(300_000))).await.unwrap_err();
        assert_eq!(error.message, "number 5 is full");
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
    })
    .unwrap();
}

pub fn payloads_of_all_sizes_arrive_whole_among_many_calls(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        all(400, |index| {
            let channel = channel.clone();
            async move {
                let number = index as u64;
                let len = match index % 8 {
                    0 => 0,
                    1..=4 => rt::random_u64() as usize % 20_000,
                    5 | 6 => rt::random_u64() as usize % 300_000,
                    _ => rt::random_u64() as usize % ((4 << 20) + 1),
                };
                let buf = IoBuf::alloc(len);
                if index % 2 == 0 {
                    assert_eq!(
                        channel.call(TestRequest::Fill(number), Some(buf.clone())).await,
                        Ok(TestReply(number, len as u64))
                    );
                    assert!(buf.as_slice() == pattern(number, len), "{len} bytes");
                } else {
                    buf.copy_from(0, &pattern(number, len));
                    let expected = if len == 0 { 0 } else { sum(buf.as_slice()) };
                    assert_eq!(
                        channel.call(TestRequest::Sum(number), Some(buf)).await,
                        Ok(TestReply(number, expected))
                    );
                }
            }
        })
        .await;
    })
    .unwrap();
}

pub fn bodies_may_be_longer_than_what_is_staged(way: ConnectionMode) {
    let listener = TcpListener::bind(localhost()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut raw = Raw::over(way, listener.accept().unwrap().0);
        raw.answer_hello();
        for len in [65_535, 65_536, 65_537, 1 << 20] {
            let (asked, _) = raw.receive().unwrap();
            let mut told = Vec::new();
            TestReply(1, len as u64).encode(&mut told);
            told.resize(len, 7);
            raw.send(Header::new(FrameKind::Reply, asked.id), &told, &[]);
        }
        assert_eq!(raw.receive().unwrap().0.kind, FrameKind::Close);
    });
    let peer = peer_of(way, vec![address], TEST_TIME_OUT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer);
        for len in [65_535, 65_536, 65_537, 1 << 20] {
            assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, len)));
        }
        drop(channel);
        until(|| server.is_finished()).await; // The goodbye leaves.
        server.join().unwrap();
    })
    .unwrap();
}

pub fn an_oversized_request_is_refused_by_the_client(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        let too_large = IoBuf::alloc((4 << 20) + 1);
        let error = channel.call(TestRequest::Sum(1), Some(too_large)).await.unwrap_err();
        assert_eq!(error.errno, Errno::E2BIG);
    })
    .unwrap();
}

pub fn an_abandoned_write_does_not_affect_other_calls(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        for round in 0..20u64 {
            let kept = IoBuf::from_slice(&pattern(round, 2_000_000)).slice(0..2_000_000);
            let given_up = IoBuf::alloc(4 << 20);
            {
                let mut call = std::pin::pin!(channel.call(TestRequest::Sum(1), Some(given_up.clone())));
                for _ in 0..round {
                    let once =
                        std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready()));
                    once.await;
                    rt::yield_now().await;
                }
            }
            // The buffer is reused at once, against the rule.
            careless::overwrite(&given_up, &pattern(99, 4 << 20));
            let expected = sum(kept.as_slice());
            assert_eq!(
                channel.call(TestRequest::Sum(round), Some(kept)).await,
                Ok(TestReply(round, expected))
            );
        }
    })
    .unwrap();
}

pub fn an_abandoned_call_does_not_touch_its_buffer(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        let buf = IoBuf::alloc(8 << 20);
        let ours = pattern(99, buf.len());
        for (round, ask) in
            [TestRequest::Fill(1), TestRequest::Sum(2), TestRequest::Fill(3), TestRequest::Sum(4)]
                .into_iter()
                .enumerate()
        {
            let before = pattern(1000, buf.len());
            buf.copy_from(0, &before);
            let seen = buf.clone();
            // When this ends, filling has begun; of the data to send, as much has left as fits into
            // the sockets' buffers.
            let given_up = Box::pin(async move {
                for _ in 0..2 + round {
                    rt::yield_now().await;
                }
                while matches!(ask, TestRequest::Fill(_))
                    && careless::first_byte(&seen) == pattern(1000, 1)[0]
                {
                    rt::sleep(Duration::from_micros(50)).await;
                }
            });
            if channel.call_or_abandon(given_up, ask, Some(buf.clone())).await.is_some() {
                continue;
            }
            buf.copy_from(0, &ours);
            assert_eq!(channel.call(TestRequest::Sum(7), None).await, Ok(TestReply(7, 0)));
            rt::sleep(Duration::from_millis(20)).await;
            assert!(buf.as_slice() == ours, "{ask:?} has written to a buffer that isn't its own any more");
        }
        // Without a reason to give up it is an ordinary call.
        let small = IoBuf::alloc(5000);
        let answer = channel.call_or_abandon(
            Box::pin(std::future::pending()),
            TestRequest::Fill(5),
            Some(small.clone()),
        );
        assert_eq!(answer.await, Some(Ok(TestReply(5, 5000))));
        assert_eq!(small.as_slice(), pattern(5, 5000));
    })
    .unwrap();
}

pub fn frames_may_arrive_in_pieces_of_any_size(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let proxy = Proxy::with_pieces(server.addresses()[0], |len| match rt::random_u64() % 4 {
        0 => 1 + rt::random_u64() as usize % 8,
        1 => 1 + rt::random_u64() as usize % 100,
        _ => 1 + rt::random_u64() as usize % len.max(1),
    });
    let channel: Channel<TestRequest, TestReply> =
        Channel::remote(peer_of(way, vec![proxy.address], Duration::from_secs(600)));
    rt::block_on(async move {
        all(150, |index| {
            let channel = channel.clone();
            async move {
                let number = index as u64;
                let len = rt::random_u64() as usize % if index % 10 == 0 { 200_000 } else { 3_000 };
                let buf = IoBuf::alloc(len);
                assert_eq!(
                    channel.call(TestRequest::Fill(number), Some(buf.clone())).await,
                    Ok(TestReply(number, len as u64))
                );
                assert!(buf.as_slice() == pattern(number, len), "{len} bytes");
                let expected = if len == 0 { 0 } else { sum(buf.as_slice()) };
                assert_eq!(
                    channel.call(TestRequest::Sum(number), Some(buf)).await,
                    Ok(TestReply(number, expected))
                );
            }
        })
        .await;
        assert_eq!(proxy.connections(), 1);
    })
    .unwrap();
}
