//! Calls that work.

use crate::support::{Ask, Service1, Told, channel_to, pattern, serve, sum};
use rt::IoBuf;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use types::Errno;

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

#[test]
fn an_answer_comes_back() {
    let service = Service1::open();
    let server = serve(&service);
    let channel = channel_to(&server);
    rt::block_on(async move {
        assert_eq!(channel.call(Ask::Sum(5), None).await, Ok(Told(5, 0)));
        let payload = IoBuf::from_slice(b"hello").slice(0..5);
        assert_eq!(channel.call(Ask::Sum(6), Some(payload)).await, Ok(Told(6, sum(b"hello"))));
        assert_eq!(channel.call(Ask::Who(1), None).await, Ok(Told(1, 8)));
        let buf = IoBuf::alloc(10_000);
        assert_eq!(channel.call(Ask::Fill(3), Some(buf.clone())).await, Ok(Told(3, 10_000)));
        assert!(buf.as_slice() == pattern(3, 10_000));
    })
    .unwrap();
}

#[test]
fn errors_keep_their_message_and_hint() {
    let server = serve(&Service1::open());
    let channel = channel_to(&server);
    rt::block_on(async move {
        let error = channel.call(Ask::Fail(4), None).await.unwrap_err();
        assert_eq!(error.errno, Errno::ENOSPC);
        assert_eq!(error.to_string(), "number 4 is full; hint: take another");
        // Also beside a buffer that was to be filled, and one that was sent.
        let error = channel.call(Ask::Fail(5), Some(IoBuf::alloc(300_000))).await.unwrap_err();
        assert_eq!(error.message, "number 5 is full");
        assert_eq!(channel.call(Ask::Sum(1), None).await, Ok(Told(1, 0)));
    })
    .unwrap();
}

#[test]
fn payloads_of_all_sizes_arrive_whole_among_many_calls() {
    let server = serve(&Service1::open());
    let channel = channel_to(&server);
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
                        channel.call(Ask::Fill(number), Some(buf.clone())).await,
                        Ok(Told(number, len as u64))
                    );
                    assert!(buf.as_slice() == pattern(number, len), "{len} bytes");
                } else {
                    buf.copy_from(0, &pattern(number, len));
                    let expected = if len == 0 { 0 } else { sum(buf.as_slice()) };
                    assert_eq!(channel.call(Ask::Sum(number), Some(buf)).await, Ok(Told(number, expected)));
                }
            }
        })
        .await;
    })
    .unwrap();
}
