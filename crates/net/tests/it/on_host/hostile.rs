//! Clients that send wrong places in the memory, change it meanwhile, or die.

use super::WAY;
use super::hand::{LIMIT, RawHostClient, local_endpoint, placed};
use crate::rpc::raw::Raw;
use crate::rpc::support::{TestReply, TestRequest, TestService, channel_to, pattern, serve, sum};
use net::Server;
use rt::{IoBuf, SharedMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use types::{Errno, Error};
use wire::frame::{FrameKind, Header, MAX_PAYLOAD_BYTES};
use wire::{Message, Service};

const PAGE: usize = 4096;

fn still_works(server: &Arc<Server>) {
    let channel = channel_to(WAY, server);
    rt::block_on(async move {
        let data = IoBuf::from_slice(&pattern(1, 100_000)).slice(0..100_000);
        assert_eq!(
            channel.call(TestRequest::Sum(5), Some(data)).await,
            Ok(TestReply(5, sum(&pattern(1, 100_000))))
        );
    })
    .unwrap();
}

fn request(id: u64) -> Header {
    Header { service: Service::Storage as u8, ..Header::new(FrameKind::Request, id) }
}

fn body(ask: TestRequest) -> Vec<u8> {
    let mut body = Vec::new();
    ask.encode(&mut body);
    body
}

fn told((header, body): (Header, Vec<u8>)) -> TestReply {
    assert_eq!(header.kind, FrameKind::Reply, "{:?}", Error::decode(&body));
    TestReply::decode(&body).unwrap()
}

#[test]
fn payloads_are_where_the_header_says() {
    let server = serve(WAY, &TestService::open());
    let address = server.addresses()[0];
    rt::block_on(async move {
        let (hand, memory) = RawHostClient::welcome(address, 50, 8 * PAGE).await;
        let data = pattern(3, 2 * PAGE + 5);
        memory.copy_in(PAGE, &IoBuf::from_slice(&data).slice(0..data.len()));
        hand.send(placed(request(1), 2, &data), &body(TestRequest::Sum(1))).await;
        assert_eq!(told(hand.receive().await.unwrap()), TestReply(1, sum(&data)));
        // The last byte of the memory, and an answer there.
        let wanted = Header { payload_place: 7, reply_payload_bytes: 2 * PAGE as u32, ..request(2) };
        hand.send(wanted, &body(TestRequest::Fill(9))).await;
        let (header, _) = hand.receive().await.unwrap();
        assert_eq!(
            (header.kind, header.payload_place, header.payload_bytes as usize),
            (FrameKind::Reply, 7, 2 * PAGE)
        );
        let seen = IoBuf::alloc(2 * PAGE);
        memory.copy_out(6 * PAGE, &seen);
        assert!(seen.as_slice() == pattern(9, 2 * PAGE));
        // A small payload may still follow the header.
        hand.send(request(3), &body(TestRequest::Sum(3))).await;
        assert_eq!(told(hand.receive().await.unwrap()), TestReply(3, 0));
    })
    .unwrap();
    still_works(&server);
}

#[test]
fn places_outside_of_the_memory_end_the_connection_and_nothing_else() {
    let server = serve(WAY, &TestService::open());
    let address = server.addresses()[0];
    let bad = [
        // The first page after the end, one byte beyond the end, and numbers that overflow.
        placed(request(1), 9, &[0; 10]),
        placed(request(1), 8, &[0; PAGE + 1]),
        placed(request(1), u32::MAX, &[0; 10]),
        Header { payload_bytes: MAX_PAYLOAD_BYTES, ..placed(request(1), 1, &[]) },
        Header { reply_payload_bytes: PAGE as u32, payload_place: 9, ..request(1) },
        Header { reply_payload_bytes: PAGE as u32 + 1, payload_place: 8, ..request(1) },
        Header { reply_payload_bytes: MAX_PAYLOAD_BYTES, ..placed(request(1), 8, &[0; 10]) },
        // A place without a payload, and a checksum of another payload.
        Header { payload_place: 1, ..request(1) },
        Header { payload_sum: Some(17), ..placed(request(1), 1, &[0; 10]) },
    ];
    rt::block_on(async move {
        let (bystander, _memory) = RawHostClient::welcome(address, 60, PAGE).await;
        for (number, header) in bad.into_iter().enumerate() {
            let (hand, _memory) = RawHostClient::welcome(address, 100 + number as u64, 8 * PAGE).await;
            let ask = if header.reply_payload_bytes > 0 { TestRequest::Fill(1) } else { TestRequest::Sum(1) };
            hand.send(header, &body(ask)).await;
            assert!(hand.receive().await.is_none(), "{number}: {header:?}");
        }
        // Places are invalid where no memory is shared.
        let mut raw = Raw::welcome(WAY, address, 200);
        raw.send_bytes(&placed(request(1), 1, &[0; 10]).encode());
        assert!(raw.receive().is_none());
        bystander.send(request(1), &body(TestRequest::Sum(4))).await;
        assert_eq!(told(bystander.receive().await.unwrap()), TestReply(4, 0));
    })
    .unwrap();
    still_works(&server);
}

/// The service gets the bytes that were verified, even if the client changes the memory meanwhile.
#[test]
fn memory_that_changes_while_it_is_verified_is_never_used() {
    const BYTES: usize = 1 << 20;
    let server = serve(WAY, &TestService::open());
    let address = server.addresses()[0];
    let data = pattern(8, BYTES);
    let (good, sums) = (IoBuf::from_slice(&data).slice(0..BYTES), sum(&data));
    let began = Instant::now();
    let (mut answered, mut refused) = (0, 0);
    for client in 300.. {
        let (data, good) = (data.clone(), good.clone());
        let outcome = rt::block_on(async move {
            let (hand, memory) = RawHostClient::welcome(address, client, BYTES).await;
            memory.copy_in(0, &good);
            let (memory, stop) = (Arc::new(memory), Arc::new(AtomicBool::new(false)));
            let (shared, stopped) = (memory.clone(), stop.clone());
            let changing = std::thread::spawn(move || {
                let (evil, right) = (IoBuf::from_slice(b"evil").slice(0..4), good.slice(BYTES - 4..BYTES));
                let mut random: u64 = client;
                let mut dwell = || {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (0..random >> 53).for_each(|_| std::hint::spin_loop());
                };
                while !stopped.load(Ordering::Relaxed) {
                    shared.copy_in(BYTES - 4, &evil);
                    dwell();
                    shared.copy_in(BYTES - 4, &right);
                    dwell();
                }
            });
            let mut counts = (0, 0);
            for id in 0..20 {
                hand.send(placed(request(id), 1, &data), &body(TestRequest::Sum(id))).await;
                match hand.receive().await {
                    Some(answer) => {
                        assert_eq!(told(answer), TestReply(id, sums), "the service saw what wasn't checked");
                        counts.0 += 1;
                    }
                    None => {
                        counts.1 += 1;
                        break;
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            changing.join().unwrap();
            counts
        });
        let (more_answered, more_refused) = outcome.unwrap();
        answered += more_answered;
        refused += more_refused;
        if answered >= 200 && refused >= 20 || began.elapsed() > Duration::from_secs(20) {
            break;
        }
    }
    assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused");
    still_works(&server);
}

#[test]
fn a_dead_client_leaks_nothing() {
    let service = TestService::new();
    let server = serve(WAY, &service);
    let address = server.addresses()[0];
    let (seen, gate) = (service.clone(), service.clone());
    rt::block_on(async move {
        for client in 400..410 {
            let (hand, memory) = RawHostClient::welcome(address, client, 64 * PAGE).await;
            hand.send(request(1), &body(TestRequest::Count(client))).await;
            let data = pattern(1, 60 * PAGE);
            memory.copy_in(0, &IoBuf::from_slice(&data).slice(0..data.len()));
            hand.send(placed(request(2), 1, &data), &body(TestRequest::Count(client))).await;
            let wanted = Header { payload_place: 1, reply_payload_bytes: 60 * PAGE as u32, ..request(3) };
            hand.send(wanted, &body(TestRequest::Fill(2))).await;
            // The client disconnects while the service executes its requests.
            while seen.begun.load(Ordering::SeqCst) < 2 * (client as usize - 399) {
                rt::sleep(Duration::from_millis(1)).await;
            }
        }
        gate.gate.set();
    })
    .unwrap();
    still_works(&server);
    server.stop();
}

fn refused(server: &Arc<Server>, client: u64, fd: impl FnOnce() -> std::os::fd::OwnedFd + 'static) {
    let address = server.addresses()[0];
    rt::block_on(async move {
        let (_before, way) = local_endpoint(address, client);
        let hand = RawHostClient::connect(&way, fd()).await;
        hand.hello(client).await;
        assert!(hand.receive().await.is_none());
    })
    .unwrap();
}

#[test]
fn unsafe_memory_is_refused() {
    let server = serve(WAY, &TestService::open());
    refused(&server, 500, || std::fs::File::open("/proc/self/status").unwrap().into());
    refused(&server, 501, || std::net::TcpListener::bind("127.0.0.1:0").unwrap().into());
    // An ordinary file could be truncated while the server reads it.
    refused(&server, 502, || tempfile::tempfile().unwrap().into());
    refused(&server, 503, || SharedMemory::create((64 << 20) + PAGE).unwrap().1);
    // No descriptor at all.
    let address = server.addresses()[0];
    rt::block_on(async move {
        let (_before, way) = local_endpoint(address, 504);
        let address = rt::net::Address::Abstract(way.socket);
        let socket = rt::net::Socket::connect(address, LIMIT).await.unwrap();
        let hand = RawHostClient { socket, before: None };
        hand.hello(504).await;
        assert!(hand.receive().await.is_none());
    })
    .unwrap();
    still_works(&server);
}

#[test]
fn a_socket_connection_without_a_tcp_connection_is_refused() {
    let server = serve(WAY, &TestService::open());
    let address = server.addresses()[0];
    rt::block_on(async move {
        let (_before, way) = local_endpoint(address, 600);
        let (_memory, fd) = SharedMemory::create(PAGE).unwrap();
        let hand = RawHostClient::connect(&way, fd).await;
        // Another client than the one that connected over TCP.
        hand.hello(601).await;
        let (header, body) = hand.receive().await.unwrap();
        let error = Error::decode(&body).unwrap();
        assert_eq!((header.kind, error.errno), (FrameKind::Error, Errno::ESTALE), "{error}");
        assert!(hand.receive().await.is_none());
    })
    .unwrap();
    still_works(&server);
}
