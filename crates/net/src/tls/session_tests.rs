use super::*;
use identity::tls::{UnauthenticatedClients, client_config, peer_name, server_config};
use identity::{Authority, Credentials, Member, Protection, Validity};
use proptest::prelude::*;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::{CipherSuiteCommon, CryptoProvider, ring::default_provider};
use rustls::pki_types::{PrivateKeyDer, UnixTime, pem::PemObject};
use rustls::{
    ClientConnection, ConnectionTrafficSecrets, DigitallySignedStruct, SignatureScheme, SupportedCipherSuite,
    Tls13CipherSuite,
};
use std::sync::LazyLock;
use std::time::SystemTime;
use types::NodeId;

const CLUSTER: &str = "01234567-89ab-4def-8123-456789abcdef";

/// One node and one client, made once because generating keys is slow.
static MEMBERS: LazyLock<(Credentials, Credentials)> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let authority = Authority::create(CLUSTER, "test", now).unwrap();
    let node = authority.issue(&Member::Node(NodeId(1)), Validity::of_node(now)).unwrap();
    let client = authority.issue(&Member::Client("a".into()), Validity::of_client(now)).unwrap();
    (node, client)
});

fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let (node, client) = &*MEMBERS;
    let client = client_config(client, Protection::Encrypted).unwrap();
    (client, server_config(node, Protection::Encrypted, UnauthenticatedClients::Refused).unwrap())
}

/// Delivers bytes from the network into a session, as many as it has space for.
fn deliver(session: &mut Session, bytes: &mut Vec<u8>) {
    let room = session.receive_buffer();
    let part = bytes.len().min(room.len());
    room.copy_from(0, &bytes[..part]);
    drop(room);
    bytes.drain(..part);
    session.received(part);
}

/// Runs a handshake of two sessions, delivering `chunk` bytes at a time.
fn shaken_in(chunk: usize, configs: (Arc<ClientConfig>, Arc<ServerConfig>)) -> (Session, Session) {
    let mut client = Session::client(configs.0, peer_name(None)).unwrap();
    let mut server = Session::server(configs.1).unwrap();
    let mut on_the_way = [Vec::new(), Vec::new()];
    while client.is_handshaking() || server.is_handshaking() {
        for (session, [mine, theirs]) in [(&mut client, [0, 1]), (&mut server, [1, 0])] {
            let mut part: Vec<u8> = on_the_way[mine].drain(..chunk.min(on_the_way[mine].len())).collect();
            deliver(session, &mut part);
            assert_eq!(session.continue_handshake().unwrap(), Step::NeedsBytes);
            on_the_way[theirs].extend(session.take_control());
        }
    }
    (client, server)
}

fn shaken() -> (Session, Session) {
    shaken_in(usize::MAX, configs())
}

/// The bytes sent over the network for these pieces.
fn encrypted(session: &mut Session, pieces: &[&[u8]]) -> Vec<u8> {
    let pieces = pieces.iter().map(|piece| IoBuf::from_slice(piece).slice(0..piece.len())).collect();
    let mut plain = Plaintext::new(pieces);
    let mut sent = Vec::new();
    while let Some(records) = session.encrypt(&mut plain).unwrap() {
        sent.extend_from_slice(records.as_slice());
    }
    sent
}

/// Everything that a session decrypts from these bytes, received `chunk` and read `read` bytes at a
/// time.
fn decrypted(session: &mut Session, mut bytes: Vec<u8>, chunk: usize, read: usize) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let buf = IoBuf::alloc(read).slice(0..read);
    loop {
        match session.decrypt(&buf)?.expect("the peer has not closed") {
            0 if bytes.is_empty() => return Ok(plain),
            0 => {
                let mut part = bytes.drain(..chunk.min(bytes.len())).collect();
                deliver(session, &mut part);
                part.extend_from_slice(&bytes);
                bytes = part;
            }
            got => plain.extend_from_slice(&buf.as_slice()[..got]),
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(2654435761) >> 7) as u8).collect()
}

#[test]
fn handshakes_work_with_any_fragmentation() {
    for chunk in [1, 2, 7, 100, 1000, usize::MAX] {
        let (mut client, mut server) = shaken_in(chunk, configs());
        let sent = encrypted(&mut client, &[b"hello"]);
        assert_eq!(decrypted(&mut server, sent, usize::MAX, 9).unwrap(), b"hello");
        assert!(server.is_drained());
        assert_eq!(Protection::negotiated(server.protocol()), Some(Protection::Encrypted));
        assert_eq!(server.peer_certificates().unwrap()[0], *MEMBERS.1.certificate());
        assert_eq!(client.peer_certificates().unwrap()[0], *MEMBERS.0.certificate());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For all sizes of pieces, of received chunks and of reads.
    #[test]
    fn sent_bytes_arrive(
        sizes in prop::collection::vec(prop_oneof![0..3usize, 60..200usize, 16_000..17_000usize, 0..600_000usize], 0..6),
        chunk in prop_oneof![1_000..3_000usize, 16_000..200_000usize],
        read in prop_oneof![50..5_000usize, 10_000..300_000usize],
        towards_client: bool,
    ) {
        let (client, server) = shaken();
        let (mut from, mut to) = if towards_client { (server, client) } else { (client, server) };
        for round in 0..2 {
            let all = pattern(sizes.iter().sum::<usize>() + round);
            let mut rest = &all[..];
            let mut pieces: Vec<&[u8]> = sizes.iter().map(|size| rest.split_off(..*size).unwrap()).collect();
            pieces.push(rest);
            let sent = encrypted(&mut from, &pieces);
            prop_assert!(sent.len() <= all.len() + (all.len() / RECORD_PLAIN_BYTES + 2) * RECORD_OVERHEAD_BYTES);
            prop_assert!(!sent.windows(16).any(|part| all.len() > 16 && part == &all[..16]), "it was sent plainly");
            prop_assert!(decrypted(&mut to, sent, chunk, read).unwrap() == all);
            prop_assert!(to.is_drained());
        }
    }
}

#[test]
fn altered_bytes_never_become_data() {
    let message = pattern(100);
    for at in 0..message.len() + RECORD_OVERHEAD_BYTES {
        let (mut client, mut server) = shaken();
        let mut sent = encrypted(&mut client, &[&message]);
        assert_eq!(sent.len(), message.len() + RECORD_OVERHEAD_BYTES);
        sent[at] ^= 1;
        // A longer record would wait for more bytes, which follow here.
        sent.extend([0; 20_000]);
        let error = decrypted(&mut server, sent, usize::MAX, 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "byte {at}: {error}");
        // The session stays unusable, and the peer gets an alert.
        assert!(
            server.decrypt(&IoBuf::alloc(1)).is_err()
                && server.encrypt(&mut Plaintext::new(vec![IoBuf::alloc(1)])).is_err()
        );
        assert!(!server.take_control().is_empty());
    }
}

#[test]
fn repeated_and_lost_records_are_noticed() {
    let (mut client, mut server) = shaken();
    let first = encrypted(&mut client, &[b"first"]);
    let second = encrypted(&mut client, &[b"second"]);
    assert_eq!(decrypted(&mut server, first.clone(), 99, 99).unwrap(), b"first");
    assert!(decrypted(&mut server, first, 99, 99).is_err());
    let (mut client, mut server) = shaken();
    encrypted(&mut client, &[b"first"]);
    assert!(decrypted(&mut server, second, 99, 99).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nonsense_ends_a_handshake(mut bytes in prop::collection::vec(any::<u8>(), 5..3_000), as_record: bool) {
        if as_record {
            bytes.splice(..5, [22, 3, 1, (bytes.len() >> 8) as u8, bytes.len() as u8]);
            bytes.extend([0; 5]);
        }
        let mut server = Session::server(configs().1).unwrap();
        deliver(&mut server, &mut bytes);
        // It may wait for more, but never completes.
        let _ = server.continue_handshake();
        prop_assert!(server.is_handshaking());
        prop_assert!(server.encrypt(&mut Plaintext::new(vec![IoBuf::alloc(1)])).is_err(), "it speaks before it knows to whom");
    }
}

/// The library leaves the part of such a message in the stage, and would look for it there.
#[test]
fn nothing_is_encrypted_while_a_handshake_message_is_incomplete() {
    let mut server = Session::server(configs().1).unwrap();
    // A record with the first four bytes of a client hello of 1,000 bytes.
    let mut part = vec![22, 3, 1, 0, 4, 1, 0, 3, 232];
    deliver(&mut server, &mut part);
    assert_eq!(server.continue_handshake().unwrap(), Step::NeedsBytes);
    assert!(server.is_handshaking());
    let refused = server.encrypt(&mut Plaintext::new(vec![IoBuf::alloc(1)])).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::NotConnected);
}

/// Accepts any server certificate.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Configurations whose keys are used up after a number of records.
fn wearing_out(client: u64, server: u64) -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let dir = tempfile::tempdir().unwrap();
    MEMBERS.0.store(dir.path()).unwrap();
    let pem = std::fs::read(dir.path().join("identity.pem")).unwrap();
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(&pem).unwrap();
    let versions = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(worn(client)).with_protocol_versions(versions).unwrap();
    let client =
        client.dangerous().with_custom_certificate_verifier(Arc::new(Trusting)).with_no_client_auth();
    let server = ServerConfig::builder_with_provider(worn(server)).with_protocol_versions(versions).unwrap();
    let mut server = server.with_no_client_auth().with_single_cert(chain, key).unwrap();
    server.send_tls13_tickets = 0;
    (Arc::new(client), Arc::new(server))
}

fn worn(records: u64) -> Arc<CryptoProvider> {
    let usual = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let worn = Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: usual.common.suite,
            hash_provider: usual.common.hash_provider,
            confidentiality_limit: records,
        },
        hkdf_provider: usual.hkdf_provider,
        aead_alg: usual.aead_alg,
        quic: None,
    };
    let suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(worn)));
    Arc::new(CryptoProvider { cipher_suites: vec![suite], ..default_provider() })
}

/// A busy connection uses up its keys within minutes: 2^24 records.
#[test]
fn keys_are_updated_on_a_live_connection() {
    for (of_client, of_server) in [(5, u64::MAX), (u64::MAX, 5), (5, 5), (2, 3)] {
        let (mut client, mut server) = shaken_in(usize::MAX, wearing_out(of_client, of_server));
        for size in [1, 200_000, 5, 70_000, 400_000, 9] {
            let data = pattern(size);
            let sent = encrypted(&mut client, &[&data]);
            let worn_out = size / RECORD_PLAIN_BYTES > 5 && of_client == 5;
            let plain = size + (size / RECORD_PLAIN_BYTES + 2) * RECORD_OVERHEAD_BYTES;
            assert!(!worn_out || sent.len() > plain, "no keys were renewed");
            assert!(decrypted(&mut server, sent, 50_000, 70_000).unwrap() == data);
            let sent = encrypted(&mut server, &[&data]);
            assert!(decrypted(&mut client, sent, 50_000, 70_000).unwrap() == data);
        }
    }
}

/// A client that completes a proper handshake and then violates the protocol.
struct Rogue {
    secrets: (u64, ConnectionTrafficSecrets),
}

impl Rogue {
    fn shaken() -> (Rogue, Session) {
        let (config, server) = configs();
        let mut config = Arc::unwrap_or_clone(config);
        config.enable_secret_extraction = true;
        let mut client = ClientConnection::new(Arc::new(config), peer_name(None)).unwrap();
        let mut server = Session::server(server).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            deliver(&mut server, &mut sent);
            server.continue_handshake().unwrap();
            client.read_tls(&mut &server.take_control()[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        let mut sent = Vec::new();
        client.write_tls(&mut sent).unwrap();
        deliver(&mut server, &mut sent);
        server.continue_handshake().unwrap();
        (Rogue { secrets: client.dangerous_extract_secrets().unwrap().tx }, server)
    }

    /// A record of RFC 8446, section 5.2.
    fn record(&mut self, kind: u8, payload: &[u8]) -> Vec<u8> {
        use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
        let (sequence, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = &mut self.secrets else {
            panic!("another cipher was chosen");
        };
        let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        *sequence += 1;
        let mut inner = [payload, &[kind]].concat();
        let header = [23, 3, 3, 0, (inner.len() + 16) as u8];
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap());
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(header), &mut inner).unwrap();
        [&header[..], &inner].concat()
    }
}

const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

#[test]
fn hand_made_records_are_accepted() {
    let (mut rogue, mut server) = Rogue::shaken();
    let records = [rogue.record(DATA, b"one"), rogue.record(DATA, b""), rogue.record(DATA, b"two")].concat();
    assert_eq!(decrypted(&mut server, records, 10, 100).unwrap(), b"onetwo");
}

/// A key update (24) whose four bytes of header and one of body are in two records; together with
/// complete messages, and alone.
#[test]
fn a_fragmented_control_message_ends_the_connection() {
    for complete_before in [&b""[..], &[24, 0, 0, 1, 0]] {
        for split in 1..5 {
            let (mut rogue, mut server) = Rogue::shaken();
            let part = [complete_before, &[24, 0, 0, 1, 0][..split]].concat();
            let mut records = rogue.record(HANDSHAKE, &part);
            deliver(&mut server, &mut records);
            let result = server.decrypt(&IoBuf::alloc(10));
            assert!(result.is_err(), "{split} bytes were taken");
            // Sending is refused meanwhile as well, and nothing panics.
            assert!(server.encrypt(&mut Plaintext::new(vec![IoBuf::from_slice(b"x")])).is_err());
        }
    }
}

#[test]
fn a_key_update_in_one_record_is_accepted() {
    let (mut rogue, mut server) = Rogue::shaken();
    let mut records = rogue.record(HANDSHAKE, &[24, 0, 0, 1, 1]);
    deliver(&mut server, &mut records);
    assert_eq!(server.decrypt(&IoBuf::alloc(10)).unwrap(), Some(0));
    // The answer, a key update of ours, is sent before the next data.
    let sent = encrypted(&mut server, &[b"x"]);
    assert_eq!(sent.len(), 1 + RECORD_OVERHEAD_BYTES + 5 + RECORD_OVERHEAD_BYTES);
}

#[test]
fn oversized_records_are_refused_by_their_header() {
    let (_, mut server) = Rogue::shaken();
    let error = decrypted(&mut server, vec![23, 3, 3, 0x7f, 0xff], 5, 100).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}
