//! Damaged tokens, capabilities, certificates, requests and files: all input is either refused or
//! parsed consistently.

use identity::{
    Authority, CapabilityKeys, Credentials, Grant, JoinToken, Member, MemberKind, PendingKey, Rights,
};
use identity::{CertificateTerms, ClientRecords, TokenParameters, TokenRecords, Validity, fuzzing};
use types::{InodeId, NodeId, SessionId};

const NOW: i64 = 1_800_000_000;

/// Random changes of each image.
const ROUNDS: usize = 2000;

fn authority() -> Authority {
    Authority::create("01234567-89ab-4def-8123-456789abcdef", "damaged", NOW).unwrap()
}

fn client() -> Credentials {
    authority().issue(&Member::Client("login1".into()), Validity::of_client(NOW)).unwrap()
}

fn token() -> (TokenRecords, JoinToken) {
    let offer = TokenParameters {
        addresses: vec!["mgmt1.example:7500".into(), "[fd00::1]:7500".into()],
        roles: [MemberKind::Node, MemberKind::Client].into_iter().collect(),
        expires: NOW + 100,
        uses: 3,
    };
    let mut records = TokenRecords::default();
    let token = records.issue(&authority(), offer, NOW).unwrap();
    (records, token)
}

/// The message in a token's text, by a decoder that isn't the crate's.
fn content(token: &JoinToken) -> Vec<u8> {
    let text = token.to_string();
    let digits = text.strip_prefix("weft-join-").unwrap().bytes().map(|letter| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        _ => 63,
    });
    let mut bytes = Vec::new();
    for group in digits.collect::<Vec<u8>>().chunks(4) {
        let number = group.iter().fold(0u32, |number, digit| number << 6 | u32::from(*digit));
        let number = number << (6 * (4 - group.len()));
        bytes.extend(&number.to_be_bytes()[1..group.len()]);
    }
    bytes.truncate(bytes.len() - 4);
    bytes
}

#[test]
fn damaged_capabilities_are_never_genuine() {
    mutate::confined(|| {
        let grant = Grant {
            session: SessionId(7),
            inode: InodeId(9),
            rights: Rights::READ_WRITE,
            holder: 11,
            epoch: 0,
            valid_s: 600,
            expires: NOW as u64,
        };
        let keys = CapabilityKeys::create().unwrap();
        for grant in [grant, Grant { epoch: 13, ..grant }] {
            mutate::damage(keys.sign(&grant).as_bytes(), ROUNDS, fuzzing::capability);
        }
    });
}

#[test]
fn damaged_tokens_are_refused() {
    mutate::confined(|| {
        let (_, token) = token();
        assert!(token.to_string().parse::<JoinToken>().is_ok());
        mutate::damage(token.to_string().as_bytes(), ROUNDS, fuzzing::token);
        mutate::damage(&content(&token), ROUNDS, fuzzing::token);
    });
}

#[test]
fn damaged_certificates_are_refused_or_name_a_member() {
    mutate::confined(|| {
        let node = authority().issue(&Member::Node(NodeId(3)), Validity::of_node(NOW)).unwrap();
        mutate::damage(node.certificate(), ROUNDS, fuzzing::certificate);
        mutate::damage(client().certificate(), ROUNDS, fuzzing::certificate);
    });
}

#[test]
fn damaged_requests_get_no_certificate_but_the_one_that_was_asked_for() {
    mutate::confined(|| {
        // Each accepted request is verified and signed.
        mutate::damage(PendingKey::generate().unwrap().request(), ROUNDS / 4, fuzzing::request);
    });
}

#[test]
fn damaged_credentials_are_refused() {
    mutate::confined(|| mutate::damage(client().to_text().as_bytes(), ROUNDS, fuzzing::files));
}

#[test]
fn damaged_keys_and_records_of_tokens_are_refused() {
    mutate::confined(|| {
        let mut keys = CapabilityKeys::create().unwrap();
        keys.stage().unwrap();
        mutate::damage(keys.render().as_bytes(), ROUNDS, fuzzing::files);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        token().0.store(&path).unwrap();
        mutate::damage(&std::fs::read(&path).unwrap(), ROUNDS, fuzzing::files);
        let (mut clients, path) = (ClientRecords::default(), dir.path().join("clients.toml"));
        for (name, end) in [("a", None), ("b", Some(NOW + 9))] {
            clients.add(name, CertificateTerms { end, validity_s: 99 }, NOW).unwrap();
        }
        clients.revoke("a", NOW).unwrap();
        clients.store(&path).unwrap();
        mutate::damage(&std::fs::read(&path).unwrap(), ROUNDS, fuzzing::files);
    });
}
