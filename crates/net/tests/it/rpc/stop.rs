//! Servers that stop in good order.

use crate::rpc::support::{TestReply, TestRequest, TestService, channel_to, localhost, server_options};
use crate::rpc::until::until_blocking;
use crate::rpc::way::ConnectionMode;
use net::{Router, Server, ServerLimits};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::Errno;

fn patient_server(way: ConnectionMode, service: &Arc<TestService>) -> Arc<Server> {
    let limits = ServerLimits { stop_timeout: Duration::from_secs(20), ..ServerLimits::default() };
    let options = net::ServerOptions { limits, ..server_options(way, localhost()) };
    Server::start(options, Router::new().with::<TestRequest, TestReply>(service.clone())).unwrap()
}

pub fn a_stop_lets_running_requests_be_answered(way: ConnectionMode) {
    let service = TestService::new();
    let server = patient_server(way, &service);
    let channel = channel_to(way, &server);
    let client = std::thread::spawn(move || {
        rt::block_on(async move {
            assert_eq!(channel.call(TestRequest::Count(1), None).await, Ok(TestReply(1, 1)));
        })
        .unwrap();
    });
    let seen = service.clone();
    until_blocking(move || seen.begun.load(Ordering::SeqCst) == 1);
    let stopping = server.clone();
    let stopper = std::thread::spawn(move || stopping.stop());
    // The stop must reach the connection before the request ends. If it doesn't, the test covers
    // less, but doesn't fail.
    std::thread::sleep(Duration::from_millis(50));
    assert!(!stopper.is_finished());
    service.gate.set();
    stopper.join().unwrap();
    client.join().unwrap();
    assert_eq!(service.begun.load(Ordering::SeqCst), 1, "it was not repeated");
}

pub fn a_stop_cancels_waiting_requests_and_refuses_new_ones(way: ConnectionMode) {
    let service = TestService::open();
    let server = patient_server(way, &service);
    let address = server.addresses()[0];
    let channel = channel_to(way, &server);
    let stopped = Arc::new(AtomicBool::new(false));
    let has_stopped = stopped.clone();
    let client = std::thread::spawn(move || {
        rt::block_on(async move {
            let mut call = pin!(channel.call(TestRequest::Wait(1), None));
            while !has_stopped.load(Ordering::SeqCst) {
                assert!(rt::timeout(Duration::from_millis(20), call.as_mut()).await.is_none());
            }
            // A stopping server doesn't answer the request: the wait continues.
            assert!(rt::timeout(Duration::from_millis(200), call.as_mut()).await.is_none());
        })
        .unwrap();
    });
    let seen = service.clone();
    until_blocking(move || seen.waiting.load(Ordering::SeqCst) == 1);
    server.stop();
    assert_eq!(service.waiting.load(Ordering::SeqCst), 0);
    stopped.store(true, Ordering::SeqCst);
    client.join().unwrap();
    let refused = std::net::TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    server.stop(); // Once more does no harm.
}

pub fn an_address_in_use_is_named_in_the_error(way: ConnectionMode) {
    let server = patient_server(way, &TestService::open());
    let error = match Server::start(server_options(way, server.addresses()[0]), Router::new()) {
        Ok(_) => panic!("two servers at one address"),
        Err(error) => error,
    };
    assert_eq!(error.errno, Errno::Number(98));
    assert!(error.message.contains(&server.addresses()[0].to_string()), "{error}");
}
