//! Messages arrive intact, in both protection modes.

use super::support::*;
use identity::Protection;
use identity::tls::UnauthenticatedClients;
use rt::IoBuf;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Forwards bytes in both directions and records those of the client.
fn wiretap(server: std::net::SocketAddr) -> (std::net::SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = seen.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let ends =
                [(client.try_clone().unwrap(), server.try_clone().unwrap(), true), (server, client, false)];
            for (mut from, mut to, is_clients) in ends {
                let heard = heard.clone();
                std::thread::spawn(move || {
                    let mut buf = vec![0; 1 << 16];
                    while let Ok(got @ 1..) = from.read(&mut buf) {
                        if is_clients {
                            heard.lock().unwrap().extend_from_slice(&buf[..got]);
                        }
                        if to.write_all(&buf[..got]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (address, seen)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Small and large payloads in both directions, many at a time, through a wiretap.
fn talk(protection: Protection, expected: &str) -> Vec<u8> {
    let authority = authority();
    let server = serve(tls(&node(&authority, 1), protection, UnauthenticatedClients::Refused));
    let (address, seen) = wiretap(server.addresses()[0]);
    let security = tls(&client(&authority, "login1"), protection, UnauthenticatedClients::Refused);
    let channel = channel_at::<3>(vec![address], security, TEST_TIME_OUT);
    let expected = expected.to_string();
    rt::block_on(async move {
        let sizes = [0, 1, 100, 4096, 70_000, 1 << 20, 4 << 20];
        let calls = sizes.iter().flat_map(|size| [(*size, true), (*size, false)]).map(|(size, fill)| {
            let (channel, expected) = (channel.clone(), expected.clone());
            async move {
                let payload = IoBuf::alloc(size).slice(0..size);
                if !fill {
                    payload.copy_from(0, &pattern(size));
                }
                let reply = channel.call(TestRequest { fill }, Some(payload.clone())).await.unwrap();
                assert_eq!(reply, TestReply(expected));
                assert!(payload.as_slice() == pattern(size), "{size} bytes came back altered");
            }
        });
        rt::join_all(calls.collect()).await;
    })
    .unwrap();
    drop(server);
    seen.lock().unwrap().clone()
}

#[test]
fn encrypted_calls_arrive_and_cannot_be_read_on_the_path() {
    let seen = talk(Protection::Encrypted, "client/login1 by tls");
    assert!(seen.len() > 5 << 20);
    assert!(!contains(&seen, b"WEFT") && !contains(&seen, &pattern(4096)[1000..1032]));
    // Not even the client's identity.
    assert!(!contains(&seen, b"login1"));
}

#[test]
fn authenticated_calls_arrive_plainly_if_both_ends_do_without_encryption() {
    let seen = talk(Protection::HandshakeOnly, "client/login1 by tcp, authenticated");
    assert!(contains(&seen, b"WEFT") && contains(&seen, &pattern(4096)[1000..1032]));
}

#[test]
fn one_end_that_wants_encryption_gets_it() {
    use Protection::{Encrypted, HandshakeOnly};
    let authority = authority();
    for (ours, theirs) in [(Encrypted, HandshakeOnly), (HandshakeOnly, Encrypted)] {
        let server = serve(tls(&node(&authority, 1), theirs, UnauthenticatedClients::Refused));
        let security = tls(&client(&authority, "a"), ours, UnauthenticatedClients::Refused);
        assert_eq!(ask(&server, security).unwrap(), "client/a by tls");
    }
}
