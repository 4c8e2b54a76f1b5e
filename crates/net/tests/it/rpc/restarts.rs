//! Servers that stop and come back.

use crate::rpc::support::{TestReply, TestRequest, TestService, channel_to, pattern, serve, serve_at, sum};
use crate::rpc::until::{until, until_blocking};
use crate::rpc::way::ConnectionMode;
use rt::IoBuf;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub fn calls_survive_a_server_that_dies_and_comes_back(way: ConnectionMode) {
    let service = TestService::new(); // The gate is closed: calls are cut in the middle.
    let mut server = serve(way, &service);
    let address = server.addresses()[0];
    let channel = channel_to(way, &server);
    let seen = service.clone();
    let client = std::thread::spawn(move || {
        rt::block_on(async move {
            let done = Rc::new(Cell::new(0));
            for number in 0..20u64 {
                let (channel, done) = (channel.clone(), done.clone());
                rt::spawn(async move {
                    assert_eq!(channel.call(TestRequest::Count(number), None).await.unwrap().0, number);
                    let data = IoBuf::from_slice(&pattern(number, 100_000));
                    let expected = sum(data.as_slice());
                    assert_eq!(
                        channel.call(TestRequest::Sum(number), Some(data)).await,
                        Ok(TestReply(number, expected))
                    );
                    done.set(done.get() + 1);
                });
            }
            until(|| done.get() == 20).await;
        })
        .unwrap();
    });
    for round in 1..=2 {
        let seen = seen.clone();
        until_blocking(move || seen.begun.load(Ordering::SeqCst) == 20 * round);
        server.stop();
        seen_running_reset(&service);
        server = serve_at(way, address, &service);
    }
    service.gate.set();
    client.join().unwrap();
    assert!(service.counts.lock().values().all(|count| *count == 1));
}

/// Requests that a dead server was executing have ended with it.
fn seen_running_reset(service: &Arc<TestService>) {
    service.running.lock().clear();
}
