//! Payloads that a server sends with their stored checksums, without verifying them: the client
//! verifies them, and asks again after a mismatch.

use crate::rpc::support::{TestReply, TestRequest, TestService, channel_to, pattern, serve};
use crate::rpc::way::ConnectionMode;
use rt::IoBuf;
use types::BLOCK_SIZE;

pub fn a_checksum_mismatch_makes_the_client_ask_again(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        for (round, blocks) in [1, 2, 16, 256, 1024].into_iter().enumerate() {
            for number in [2 * round as u64 + 100, 2 * round as u64 + 101] {
                let buf = IoBuf::alloc(blocks * BLOCK_SIZE);
                let times = 1 + number % 2;
                assert_eq!(
                    channel.call(TestRequest::Stored(number), Some(buf.clone())).await,
                    Ok(TestReply(number, times))
                );
                assert!(buf.as_slice() == pattern(number, buf.len()), "{blocks} blocks");
            }
        }
        // The connection stays up, and nothing else has changed.
        assert_eq!(channel.call(TestRequest::Who(1), None).await, Ok(TestReply(1, 8)));
    })
    .unwrap();
}

pub fn a_partial_block_is_verified_by_the_server(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let channel = channel_to(way, &server);
    rt::block_on(async move {
        let buf = IoBuf::alloc(BLOCK_SIZE + 100);
        assert_eq!(channel.call(TestRequest::Stored(7), Some(buf.clone())).await, Ok(TestReply(7, 1)));
        assert!(buf.as_slice() == pattern(7, buf.len()));
    })
    .unwrap();
}
