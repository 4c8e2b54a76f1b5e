//! Tests of the frame header: its frozen bytes, and refused headers.

use proptest::prelude::*;
use types::{Epoch, crc32c};
use wire::frame::{
    FrameKind, HEADER_BYTES, Header, Hello, LocalEndpoint, MAX_BODY_BYTES, MAX_PAYLOAD_BYTES, Welcome,
};
use wire::{Malformed, Message, Service};

fn write_request() -> Header {
    Header {
        service: Service::Storage as u8,
        reply_payload_bytes: 0x0003_0201,
        deadline_ms: 60_000,
        epoch: Epoch(0x0102_0304_0506_0708),
        ..Header::new(FrameKind::Request, 0x1112_1314_1516_1718)
    }
    .with_body(b"body")
    .with_payload(b"123456789")
}

/// Sets the correct checksum, so that another error is found.
fn summed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let sum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn refusal(bytes: [u8; HEADER_BYTES]) -> String {
    let Malformed { cause } = Header::decode(&bytes).expect_err("must be refused");
    cause
}

#[test]
fn the_layout_is_frozen() {
    let expected = [
        0x57, 0x45, 0x46, 0x54, 1, 3, 3, 1, // WEFT, version, request, storage, summed
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // id
        4, 0, 0, 0, 9, 0, 0, 0, // body, payload
        1, 2, 3, 0, 0x60, 0xea, 0, 0, // wanted, deadline
        0x50, 0xc9, 0x3f, 0x26, 0x83, 0x92, 0x06, 0xe3, // sums
        8, 7, 6, 5, 4, 3, 2, 1, // epoch
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // reserved
    ];
    let bytes = write_request().encode();
    assert_eq!(bytes[..60], expected);
    assert_eq!(bytes[60..], crc32c(&expected).to_le_bytes());
    assert_eq!(Header::decode(&bytes), Ok(write_request()));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = write_request().encode();
    for bit in 0..HEADER_BYTES * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::decode(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn wrong_frames_are_refused_with_their_cause() {
    let bytes = write_request().encode();
    let with = |at: usize, value: &[u8]| {
        let mut changed = bytes;
        changed[at..at + value.len()].copy_from_slice(value);
        refusal(summed(changed))
    };
    assert_eq!(with(0, b"HTTP"), "the frame starts with [48, 54, 54, 50], not WEFT");
    assert_eq!(with(4, &[2]), "frame of version 2, only version 1 is supported");
    assert_eq!(with(5, &[0]), "frame of unknown kind 0");
    assert_eq!(with(5, &[11]), "frame of unknown kind 11");
    let beyond = (MAX_BODY_BYTES + 1).to_le_bytes();
    assert_eq!(with(16, &beyond), "body of 1048577 bytes, at most 1048576 are allowed");
    let beyond = (MAX_PAYLOAD_BYTES + 1).to_le_bytes();
    assert_eq!(with(20, &beyond), "payload of 4194305 bytes, at most 4194304 are allowed");
    assert_eq!(with(24, &beyond), "wanted payload of 4194305 bytes, at most 4194304 are allowed");
}

#[test]
fn reserved_bytes_of_later_versions_are_ignored() {
    let mut bytes = write_request().encode();
    bytes[6] = 200; // a service
    bytes[7] |= 0x80; // a flag
    bytes[48..60].fill(0xff); // reserved
    let header = Header::decode(&summed(bytes)).unwrap();
    assert_eq!((header.service, header.service()), (200, None));
    assert_eq!(header.payload_sum, write_request().payload_sum);
}

#[test]
fn the_unchecked_flag_is_encoded() {
    let header = write_request();
    let unchecked = Header { unchecked: true, ..header };
    assert_eq!((header.encode()[7], unchecked.encode()[7]), (1, 3));
    assert!(Header::decode(&unchecked.encode()).unwrap().unchecked);
}

#[test]
fn body_and_payload_are_checked_against_the_header() {
    let header = write_request();
    assert_eq!(header.check_body(b"body"), Ok(()));
    assert!(header.check_body(b"bodx").is_err());
    assert!(header.check_body(b"bod").is_err());
    assert_eq!(header.check_payload(b"123456789"), Ok(()));
    assert!(header.check_payload(b"123456780").is_err());
    assert_eq!(header.check_payload_crc(9, 0xe306_9283), Ok(()));
    assert!(header.check_payload_crc(9, 0xe306_9284).is_err());
    assert!(header.check_payload_crc(8, 0xe306_9283).is_err());
    let unsummed = Header { payload_sum: None, ..header };
    assert_eq!(unsummed.check_payload(b"123456780"), Ok(()));
    assert!(unsummed.check_payload(b"12345678").is_err());
    assert_eq!(Header::new(FrameKind::Ping, 1).check_body(b""), Ok(()));
}

#[test]
fn every_kind_has_its_number() {
    let kinds: Vec<FrameKind> = (0..=255).filter_map(FrameKind::from_number).collect();
    assert_eq!(kinds.iter().map(|kind| *kind as u8).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
}

#[test]
fn names_of_peers_are_bounded() {
    let mut out = Vec::new();
    Hello { name: "x".repeat(4097), ..Hello::default() }.encode(&mut out);
    assert!(Hello::decode(&out).is_err());
}

prop_compose! {
    fn headers()(
        kind in 1u8..=10, service: u8, id: u64, body_bytes in 0..=MAX_BODY_BYTES, payload_bytes in 0..=MAX_PAYLOAD_BYTES,
        reply_payload_bytes in 0..=MAX_PAYLOAD_BYTES, deadline_ms: u32, body_sum: u32, payload_sum: Option<u32>, unchecked: bool, epoch: u64,
        payload_place: u32,
    ) -> Header {
        let kind = FrameKind::from_number(kind).expect("a kind in range");
        let epoch = Epoch(epoch);
        Header {
            kind, service, id, body_bytes, payload_bytes, reply_payload_bytes, deadline_ms, body_sum, payload_sum, unchecked, epoch, payload_place,
        }
    }
}

proptest! {
    #[test]
    fn headers_round_trip(header in headers()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn arbitrary_bytes_with_a_valid_checksum_never_panic(start in prop::collection::vec(any::<u8>(), 55)) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..5].copy_from_slice(b"WEFT\x01");
        bytes[5..60].copy_from_slice(&start);
        let bytes = summed(bytes);
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn handshakes_round_trip(
        protocol: u32, cluster in ".{0,40}", name in ".{0,40}", client: u64, core: u32, cores: u32, incarnation: u64, credits: u32,
    ) {
        let mut out = Vec::new();
        let hello = Hello { protocol, cluster, name: name.clone(), client, core, cores, incarnation };
        hello.encode(&mut out);
        prop_assert_eq!(Hello::decode(&out), Ok(hello));
        out.clear();
        let on_host = (cores % 2 == 1).then(|| LocalEndpoint { host: name.clone(), socket: name.clone(), user: core });
        let welcome = Welcome { protocol, name, credits, cores, on_host };
        welcome.encode(&mut out);
        prop_assert_eq!(Welcome::decode(&out), Ok(welcome));
    }
}
