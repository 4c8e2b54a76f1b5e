//! Permits that a server reserves for nodes.

use crate::rpc::silence::{call_apart, serve_with_little_memory};
use crate::rpc::support::{TEST_TIME_OUT, TestReply, TestRequest, TestService, pattern, peer_options, sum};
use crate::rpc::until::until;
use crate::rpc::way::ConnectionMode;
use net::{Channel, Peer, PeerOptions};
use rt::IoBuf;
use std::sync::atomic::Ordering;

pub fn requests_of_nodes_do_not_wait_for_data_of_clients(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve_with_little_memory(way, &service);
    let addresses = server.addresses().to_vec();
    let client = Peer::new(peer_options(way, addresses.clone()));
    let others = Peer::new(peer_options(way, addresses.clone()));
    let node = Peer::new(PeerOptions {
        security: way.security_of_server(),
        timeout: TEST_TIME_OUT / 10,
        ..peer_options(way, addresses)
    });
    rt::block_on(async move {
        let holder = call_apart(&Channel::remote(client), TestRequest::Count(1), 1 << 20);
        until(|| service.begun.load(Ordering::SeqCst) == 1).await;
        let waiter = call_apart(&Channel::remote(others), TestRequest::Sum(2), 1 << 20);
        let channel: Channel<TestRequest, TestReply> = Channel::remote(node);
        for number in 0..10 {
            let data = pattern(number, 1 << 20);
            let answer = channel.call(TestRequest::Sum(number), Some(IoBuf::from_slice(&data))).await;
            assert_eq!(answer, Ok(TestReply(number, sum(&data))));
        }
        assert!(holder.borrow().is_none() && waiter.borrow().is_none());
        service.gate.set();
        until(|| holder.borrow().is_some() && waiter.borrow().is_some()).await;
    })
    .unwrap();
}
