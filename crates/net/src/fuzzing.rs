//! Feeds arbitrary bytes to the code that receives frames: for the fuzz target and its short form
//! in `tests/`.

use crate::fault::Fault;
use crate::inbound::Inbound;
use crate::stream::{Stream, Transport};
use rt::IoBuf;
use rt::net::Socket;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use types::crc32c;
use wire::frame::{HEADER_BYTES, Header};

/// Bytes of a stream that are received: as many as a socket buffers without a reader.
const MAX_BYTES: usize = 64 << 10;

/// Receives the frames of a stream as it is, and again with magic, version and checksums corrected,
/// which random changes would never find. Gives each body and payload to every decoder.
///
/// # Panics
/// When a decoder panics, or this machine has no io_uring.
pub fn frames(bytes: &[u8]) {
    let as_it_is = bytes[..bytes.len().min(MAX_BYTES)].to_vec();
    let right = with_right_sums(&as_it_is);
    rt::block_on(async move {
        receive(&as_it_is).await;
        receive(&right).await;
    })
    .expect("this machine has io_uring");
}

async fn receive(bytes: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(bytes).expect("a socket takes so many bytes");
    drop(theirs);
    let stream = Stream::Plain(Socket::from_fd(ours.into()), Transport::Tcp);
    let mut inbound = Inbound::new(Rc::new(stream));
    // The end of the stream ends the loop: every frame consumes some of it.
    while let Ok(Some(_)) = frame(&mut inbound).await {}
}

async fn frame(inbound: &mut Inbound) -> Result<Option<Header>, Fault> {
    let Some(header) = inbound.header().await? else { return Ok(None) };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    let body = inbound.body(&header).await?;
    assert_eq!(body.len(), header.body_bytes as usize);
    wire::fuzzing::messages(body.as_slice());
    if header.inline_bytes() % 2 == 1 {
        inbound.skip(header.inline_bytes()).await?;
    } else if header.inline_bytes() > 0 {
        let payload = IoBuf::alloc(header.inline_bytes());
        let is_right = inbound.unchecked_payload(&header, &payload).await?;
        assert!(is_right || header.unchecked);
    }
    Ok(Some(header))
}

fn with_right_sums(bytes: &[u8]) -> Vec<u8> {
    let mut right = bytes.to_vec();
    let mut at = 0;
    while let Some(start) = right[at..].first_chunk::<HEADER_BYTES>() {
        let mut start = *start;
        wire::fuzzing::seal(&mut start);
        let Ok(mut header) = Header::decode(&start) else { break };
        let body = at + HEADER_BYTES..at + HEADER_BYTES + header.body_bytes as usize;
        let payload = body.end..body.end + header.inline_bytes();
        header.body_sum = right.get(body).map_or(0, crc32c);
        header.payload_sum = header.payload_sum.map(|_| right.get(payload.clone()).map_or(0, crc32c));
        right[at..at + HEADER_BYTES].copy_from_slice(&header.encode());
        if payload.end > right.len() {
            break;
        }
        at = payload.end;
    }
    right
}
