//! Frames: how messages travel on a connection.
//!
//! A frame is a header of 64 bytes, then the message's body, then the payload (the data of a read
//! or a write). Integers are little-endian. The layout is version 1 and fixed:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic, `WEFT` |
//! | 4 | 1 | version |
//! | 5 | 1 | [`FrameKind`] |
//! | 6 | 1 | service, [`crate::Service`] as a number; 0 for none |
//! | 7 | 1 | flags; bit 0: the payload's checksum is present; bit 1: only the receiver verifies the payload's checksum |
//! | 8 | 8 | id |
//! | 16 | 4 | length of the body, at most [`MAX_BODY_BYTES`] |
//! | 20 | 4 | length of the payload, at most [`MAX_PAYLOAD_BYTES`] |
//! | 24 | 4 | bytes of payload that the reply may bring, at most [`MAX_PAYLOAD_BYTES`] |
//! | 28 | 4 | milliseconds that the sender waits; 0: no limit |
//! | 32 | 4 | CRC32C of the body |
//! | 36 | 4 | CRC32C of the payload |
//! | 40 | 8 | epoch of the sender's cluster map |
//! | 48 | 4 | place of the payload: 0 behind the body, n at page n - 1 of the connection's shared memory |
//! | 52 | 8 | reserved: written as zeros, ignored |
//! | 60 | 4 | CRC32C of bytes 0 to 59 |
//!
//! In a request whose answer has a payload, the place says where the payload must be put; the reply
//! says whether it is there.
//!
//! Bit 1 of the flags in such a request says that the sender verifies the answer's payload against
//! its checksum, and repeats the request without that bit if they differ. The answer may then have
//! the bit, too: its checksum is the stored one of the payload, and the server hasn't verified it.
//! So the checksum of read data is computed once on its way and not at both ends.
//!
//! An answer whose body exceeds one frame is sent in several frames: [`FrameKind::Part`] for each
//! piece but the last, which is the [`FrameKind::Reply`]. Requests have one frame.
//!
//! An error of [`Header::decode`] ends the connection: the start of the next frame is unknown after
//! it. An unknown service is no such error; it is refused like any request.

mod handshake;

pub use handshake::{Hello, LocalEndpoint, Welcome};

use crate::{Malformed, Service};
use types::{Epoch, crc32c};

/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 64;

/// Longest body in bytes: a directory listing of a few thousand entries fits, and a peer can't
/// claim much memory by a header alone.
pub const MAX_BODY_BYTES: u32 = 1 << 20;

/// Longest body of an answer, all its pieces together, in bytes. The longest list is that of 65,536
/// sessions, with some 300 bytes each.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Longest payload in bytes: four times the largest request of the kernel.
pub const MAX_PAYLOAD_BYTES: u32 = 4 << 20;

/// Payloads in shared memory begin at multiples of this many bytes.
pub const SHARED_PAGE_BYTES: usize = 4096;

/// The version of frames that this program uses, and the highest [`Hello::protocol`].
pub const VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"WEFT";

/// Flag: the payload's checksum is present.
const HAS_PAYLOAD_SUM: u8 = 1;

/// Flag: only the receiver verifies the payload's checksum.
const UNCHECKED: u8 = 2;

/// Type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of the connecting side: a [`Hello`].
    Hello = 1,
    /// Answer to it: a [`Welcome`].
    Welcome = 2,
    /// Request to the header's service.
    Request = 3,
    /// Answer to the request with the same id.
    Reply = 4,
    /// The request with the same id failed; the body is a [`types::Error`].
    Error = 5,
    /// The caller no longer waits for the request with this id.
    Cancel = 6,
    /// Asks for a [`FrameKind::Pong`].
    Ping = 7,
    /// Answers a [`FrameKind::Ping`].
    Pong = 8,
    /// The sender sends nothing more and closes the connection.
    Close = 9,
    /// A piece of the body of the answer to the request with the same id. More pieces follow; the
    /// last one is the [`FrameKind::Reply`].
    Part = 10,
}

impl FrameKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<FrameKind> {
        Some(match number {
            1 => FrameKind::Hello,
            2 => FrameKind::Welcome,
            3 => FrameKind::Request,
            4 => FrameKind::Reply,
            5 => FrameKind::Error,
            6 => FrameKind::Cancel,
            7 => FrameKind::Ping,
            8 => FrameKind::Pong,
            9 => FrameKind::Close,
            10 => FrameKind::Part,
            _ => return None,
        })
    }
}

/// Header of a frame, before its body and payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Type of the frame.
    pub kind: FrameKind,
    /// The number of a [`Service`], known here or not; 0 for none.
    pub service: u8,
    /// Number of the request on its connection; a reply carries the request's.
    pub id: u64,
    /// Length of the body.
    pub body_bytes: u32,
    /// Length of the payload.
    pub payload_bytes: u32,
    /// Bytes of payload that the reply may bring: the length of a read's buffer.
    pub reply_payload_bytes: u32,
    /// How long the sender waits, in milliseconds; 0: no limit.
    pub deadline_ms: u32,
    /// CRC32C of the body.
    pub body_sum: u32,
    /// CRC32C of the payload; `None` if it has no checksum.
    pub payload_sum: Option<u32>,
    /// In a request: the server needn't verify the checksum of the answer's payload. In the answer:
    /// it hasn't.
    pub unchecked: bool,
    /// Epoch of the sender's cluster map.
    pub epoch: Epoch,
    /// Where the payload is: 0 behind the body, n at page n - 1 (of [`SHARED_PAGE_BYTES`]) of the
    /// memory that both ends of the connection share.
    pub payload_place: u32,
}

impl Header {
    /// A header without body and payload.
    pub fn new(kind: FrameKind, id: u64) -> Header {
        Header {
            kind,
            service: 0,
            id,
            body_bytes: 0,
            payload_bytes: 0,
            reply_payload_bytes: 0,
            deadline_ms: 0,
            body_sum: crc32c(&[]),
            payload_sum: None,
            unchecked: false,
            epoch: Epoch(0),
            payload_place: 0,
        }
    }

    /// Adds length and checksum of a body. The body must be no longer than [`MAX_BODY_BYTES`]: a
    /// peer would end the connection.
    pub fn with_body(self, body: &[u8]) -> Header {
        debug_assert!(body.len() <= MAX_BODY_BYTES as usize);
        Header { body_bytes: body.len() as u32, body_sum: crc32c(body), ..self }
    }

    /// Adds length and checksum of a payload, which must be no longer than [`MAX_PAYLOAD_BYTES`].
    pub fn with_payload(self, payload: &[u8]) -> Header {
        debug_assert!(payload.len() <= MAX_PAYLOAD_BYTES as usize);
        Header { payload_bytes: payload.len() as u32, payload_sum: Some(crc32c(payload)), ..self }
    }

    /// The service, if its number is known here.
    pub fn service(&self) -> Option<Service> {
        Service::from_number(self.service)
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = self.kind as u8;
        out[6] = self.service;
        let summed = if self.payload_sum.is_some() { HAS_PAYLOAD_SUM } else { 0 };
        out[7] = summed | if self.unchecked { UNCHECKED } else { 0 };
        put_u64(&mut out, 8, self.id);
        put_u32(&mut out, 16, self.body_bytes);
        put_u32(&mut out, 20, self.payload_bytes);
        put_u32(&mut out, 24, self.reply_payload_bytes);
        put_u32(&mut out, 28, self.deadline_ms);
        put_u32(&mut out, 32, self.body_sum);
        put_u32(&mut out, 36, self.payload_sum.unwrap_or(0));
        put_u64(&mut out, 40, self.epoch.0);
        put_u32(&mut out, 48, self.payload_place);
        let sum = crc32c(&out[..60]);
        put_u32(&mut out, 60, sum);
        out
    }

    /// Decodes the header from bytes of a peer; checks magic, version, checksum, kind and lengths.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        if bytes[..4] != MAGIC {
            return Err(Malformed::new(format!("the frame starts with {:02x?}, not WEFT", &bytes[..4])));
        }
        if bytes[4] != VERSION {
            return Err(Malformed::new(format!(
                "frame of version {}, only version {VERSION} is supported",
                bytes[4]
            )));
        }
        let (sum, expected) = (u32_at(bytes, 60), crc32c(&bytes[..60]));
        if sum != expected {
            return Err(Malformed::new(format!(
                "the header's checksum is {sum:08x}, expected {expected:08x}"
            )));
        }
        let unknown = || Malformed::new(format!("frame of unknown kind {}", bytes[5]));
        Ok(Header {
            kind: FrameKind::from_number(bytes[5]).ok_or_else(unknown)?,
            service: bytes[6],
            id: u64_at(bytes, 8),
            body_bytes: length_at(bytes, 16, "body", MAX_BODY_BYTES)?,
            payload_bytes: length_at(bytes, 20, "payload", MAX_PAYLOAD_BYTES)?,
            reply_payload_bytes: length_at(bytes, 24, "wanted payload", MAX_PAYLOAD_BYTES)?,
            deadline_ms: u32_at(bytes, 28),
            body_sum: u32_at(bytes, 32),
            payload_sum: (bytes[7] & HAS_PAYLOAD_SUM != 0).then(|| u32_at(bytes, 36)),
            unchecked: bytes[7] & UNCHECKED != 0,
            epoch: Epoch(u64_at(bytes, 40)),
            payload_place: u32_at(bytes, 48),
        })
    }

    /// Bytes of the payload that follow the body.
    pub fn inline_bytes(&self) -> usize {
        if self.payload_place == 0 { self.payload_bytes as usize } else { 0 }
    }

    /// Checks that this is the frame's body.
    pub fn check_body(&self, body: &[u8]) -> Result<(), Malformed> {
        check("body", body, self.body_bytes, self.body_sum)
    }

    /// Checks that this is the frame's payload, as far as the header describes it.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), Malformed> {
        match self.payload_sum {
            Some(sum) => check("payload", payload, self.payload_bytes, sum),
            None => check_len("payload", payload.len(), self.payload_bytes),
        }
    }

    /// The same for a payload with a known CRC32C.
    pub fn check_payload_crc(&self, bytes: usize, sum: u32) -> Result<(), Malformed> {
        check_len("payload", bytes, self.payload_bytes)?;
        self.payload_sum.map_or(Ok(()), |expected| check_sum("payload", sum, expected))
    }
}

fn check_len(what: &str, bytes: usize, length: u32) -> Result<(), Malformed> {
    match bytes == length as usize {
        true => Ok(()),
        false => Err(Malformed::new(format!("{what} of {bytes} bytes instead of {length}"))),
    }
}

fn check_sum(what: &str, found: u32, sum: u32) -> Result<(), Malformed> {
    match found == sum {
        true => Ok(()),
        false => Err(Malformed::new(format!(
            "the checksum of the {what} is {found:08x}, its header says {sum:08x}"
        ))),
    }
}

fn check(what: &str, bytes: &[u8], length: u32, sum: u32) -> Result<(), Malformed> {
    check_len(what, bytes.len(), length)?;
    check_sum(what, crc32c(bytes), sum)
}

fn length_at(bytes: &[u8; HEADER_BYTES], at: usize, what: &str, limit: u32) -> Result<u32, Malformed> {
    match u32_at(bytes, at) {
        length if length <= limit => Ok(length),
        length => Err(Malformed::new(format!("{what} of {length} bytes, at most {limit} are allowed"))),
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_u32(out: &mut [u8; HEADER_BYTES], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut [u8; HEADER_BYTES], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
