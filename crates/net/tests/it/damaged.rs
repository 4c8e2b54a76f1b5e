//! Damaged streams of frames: a connection accepts intact frames, and ends at the first damaged
//! one.

use net::fuzzing;
use types::{ChunkFileId, Epoch, SessionId, TargetId};
use wire::frame::{FrameKind, Header, Hello};
use wire::{DataPath, Message, Request, StorageOp, StorageRequest};

/// Random changes of each stream.
const ROUNDS: usize = 500;

fn body(message: &impl Message) -> Vec<u8> {
    let mut body = Vec::new();
    message.encode(&mut body);
    body
}

/// The frames that a client sends: hello, a request, a request with a payload, and a ping.
fn stream() -> Vec<u8> {
    let hello =
        Hello { protocol: 1, cluster: "c".into(), name: "login1".into(), cores: 1, ..Hello::default() };
    let hello = body(&hello);
    let read = StorageOp::Read { offset: 4096, path: DataPath::Cached };
    let read = body(&StorageRequest::new(SessionId(7), TargetId(12), ChunkFileId(77), read));
    let service = StorageRequest::SERVICE as u8;
    let request = |id| Header { service, epoch: Epoch(3), ..Header::new(FrameKind::Request, id) };
    let payload = [7; 25];
    let parts = [
        Header::new(FrameKind::Hello, 0).with_body(&hello).encode().to_vec(),
        hello,
        Header { reply_payload_bytes: 4096, ..request(1).with_body(&read) }.encode().to_vec(),
        read.clone(),
        request(2).with_body(&read).with_payload(&payload).encode().to_vec(),
        read,
        payload.to_vec(),
        Header::new(FrameKind::Ping, 3).encode().to_vec(),
    ];
    parts.concat()
}

#[test]
fn damaged_streams_end_at_the_damage() {
    mutate::confined(|| {
        let stream = stream();
        mutate::cuts(&stream, fuzzing::frames);
        mutate::flips(&stream, fuzzing::frames);
        mutate::changes(&stream, ROUNDS, fuzzing::frames);
    });
}
