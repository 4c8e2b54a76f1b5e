//! Join tokens: roles, number of uses and expiry.

use crate::common::{CLUSTER, OTHER_CLUSTER};
use identity::{
    Authority, Error, JoinToken, MAX_TOKENS, MemberKind, MemberKinds, TokenParameters, TokenRecords,
    TokenSecret,
};

const NOW: i64 = 1_800_000_000;
const LIFE: i64 = 100;

fn offer(kind: impl Into<MemberKinds>, uses: u32) -> TokenParameters {
    let addresses = vec!["mgmt1.example:4711".into(), "[fd00::1]:4711".into()];
    TokenParameters { addresses, roles: kind.into(), expires: NOW + LIFE, uses }
}

fn issued(kind: impl Into<MemberKinds>, uses: u32) -> (TokenRecords, JoinToken) {
    let mut records = TokenRecords::default();
    let authority = Authority::create(CLUSTER, "test", NOW).unwrap();
    let token = records.issue(&authority, offer(kind, uses), NOW).unwrap();
    (records, token)
}

fn redeem(records: &mut TokenRecords, token: &JoinToken, kind: MemberKind, now: i64) -> Result<(), Error> {
    records.redeem(&token.cluster, token.id, &token.secret, kind, now)
}

#[test]
fn a_token_survives_its_text() {
    let (_, token) = issued(MemberKind::Node, 1);
    let text = token.to_string();
    assert!(text.starts_with("weft-join-") && text.len() < 300, "{text}");
    assert_eq!(text.parse::<JoinToken>().unwrap(), token);
    let wrapped = format!("  {}\n{}\r\n", &text[..70], &text[70..]);
    assert_eq!(wrapped.parse::<JoinToken>().unwrap(), token);
}

#[test]
fn an_altered_text_is_noticed() {
    let (_, token) = issued(MemberKind::Node, 1);
    let text = token.to_string();
    for at in 0..text.len() {
        for other in ["A", "7", "-", "*"] {
            let mut altered = text.clone();
            altered.replace_range(at..=at, other);
            let same = altered == text;
            assert_eq!(altered.parse::<JoinToken>().is_ok(), same, "character {at} changed unnoticed");
        }
        assert!(text[..at].parse::<JoinToken>().is_err(), "cut at {at} unnoticed");
    }
    assert!("x".repeat(10_000).parse::<JoinToken>().is_err());
}

#[test]
fn a_token_is_good_for_its_uses() {
    let (mut records, token) = issued(MemberKind::Node, 2);
    redeem(&mut records, &token, MemberKind::Node, NOW).unwrap();
    assert_eq!(records.list()[0].uses_left, 1);
    redeem(&mut records, &token, MemberKind::Node, NOW + LIFE - 1).unwrap();
    let replayed = redeem(&mut records, &token, MemberKind::Node, NOW);
    assert!(matches!(replayed, Err(Error::UnknownToken)));
    assert!(records.list().is_empty());
}

#[test]
fn a_token_ends_when_it_says() {
    let (mut records, token) = issued(MemberKind::Node, 9);
    for late in [LIFE, LIFE + 1, i64::MAX - NOW] {
        assert!(matches!(
            redeem(&mut records, &token, MemberKind::Node, NOW + late),
            Err(Error::ExpiredToken)
        ));
    }
    // Refused whether it was purged or not.
    records.purge(NOW + LIFE);
    assert!(matches!(redeem(&mut records, &token, MemberKind::Node, NOW), Err(Error::UnknownToken)));
}

#[test]
fn a_token_allows_its_roles_only() {
    for kind in MemberKind::ALL {
        let (mut records, token) = issued(kind, 9);
        for wanted in MemberKind::ALL {
            let result = redeem(&mut records, &token, wanted, NOW);
            assert_eq!(result.is_ok(), wanted == kind, "{wanted:?} with a token for {kind:?}");
        }
        assert_eq!(records.list()[0].uses_left, 8, "a refusal took a use");
    }
    let (mut records, token) = issued(MemberKinds::from_iter(MemberKind::ALL), 2);
    for wanted in MemberKind::ALL {
        redeem(&mut records, &token, wanted, NOW).unwrap();
    }
}

/// An attacker who knows the format of a token and changes its fields.
#[test]
fn a_manipulated_token_is_refused() {
    let (mut records, token) = issued(MemberKind::Client, 9);
    for bit in 0..128 {
        let mut secret = token.secret.as_bytes().to_vec();
        secret[bit / 8] ^= 1 << (bit % 8);
        let doctored = JoinToken { secret: TokenSecret::from_bytes(&secret).unwrap(), ..token.clone() };
        let result = redeem(&mut records, &doctored, MemberKind::Client, NOW);
        assert!(matches!(result, Err(Error::UnknownToken)), "bit {bit} of the secret doesn't count");
    }
    let doctored = JoinToken { roles: MemberKind::Node.into(), expires: i64::MAX, ..token.clone() };
    assert!(matches!(redeem(&mut records, &doctored, MemberKind::Node, NOW), Err(Error::TokenRole { .. })));
    assert!(matches!(
        redeem(&mut records, &doctored, MemberKind::Client, NOW + LIFE),
        Err(Error::ExpiredToken)
    ));
    let doctored = JoinToken { cluster: OTHER_CLUSTER.into(), ..token.clone() };
    assert!(matches!(redeem(&mut records, &doctored, MemberKind::Client, NOW), Err(Error::UnknownToken)));
    let doctored = JoinToken { id: token.id ^ 1, ..token.clone() };
    assert!(matches!(redeem(&mut records, &doctored, MemberKind::Client, NOW), Err(Error::UnknownToken)));
    assert_eq!(records.list()[0].uses_left, 9);
    redeem(&mut records, &token, MemberKind::Client, NOW).unwrap();
}

/// An attacker who can write the file of records, but only has a token for the weaker role.
#[test]
fn manipulated_records_are_refused() {
    let (records, token) = issued(MemberKind::Client, 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    records.store(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("secret ="));
    let end = (NOW + LIFE).to_string();
    for (from, to) in [("\"client\"", "\"client\", \"node\""), (end.as_str(), "9999999999")] {
        assert!(text.contains(from));
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let mut doctored = TokenRecords::load(&path).unwrap();
        let result = redeem(&mut doctored, &token, MemberKind::Client, NOW);
        assert!(matches!(result, Err(Error::UnknownToken)), "{to}");
    }
}

#[test]
fn a_revoked_token_is_refused() {
    let (mut records, token) = issued(MemberKind::Node, 9);
    assert!(records.revoke(token.id) && !records.revoke(token.id));
    assert!(matches!(redeem(&mut records, &token, MemberKind::Node, NOW), Err(Error::UnknownToken)));
}

#[test]
fn useless_offers_and_too_many_are_refused() {
    let authority = Authority::create(CLUSTER, "test", NOW).unwrap();
    let mut records = TokenRecords::default();
    let useless = [
        TokenParameters { addresses: vec![], ..offer(MemberKind::Node, 1) },
        TokenParameters { addresses: vec!["a:1".into(); 17], ..offer(MemberKind::Node, 1) },
        TokenParameters { expires: NOW, ..offer(MemberKind::Node, 1) },
        offer(MemberKinds::default(), 1),
        offer(MemberKind::Node, 0),
    ];
    for offer in useless {
        assert!(matches!(records.issue(&authority, offer, NOW), Err(Error::BadToken { .. })));
    }
    for _ in 0..MAX_TOKENS {
        records.issue(&authority, offer(MemberKind::Node, 1), NOW).unwrap();
    }
    let surplus = records.issue(&authority, offer(MemberKind::Node, 1), NOW);
    assert!(matches!(surplus, Err(Error::TooManyTokens(MAX_TOKENS))));
    // Expired tokens don't count against the limit.
    let later = TokenParameters { expires: NOW + 2 * LIFE, ..offer(MemberKind::Node, 1) };
    records.issue(&authority, later, NOW + LIFE).unwrap();
    assert_eq!(records.list().len(), 1);
}

#[test]
fn secrets_are_not_printed() {
    let (records, token) = issued(MemberKind::Node, 1);
    let printed = format!("{token:?} {records:?}");
    let secret = token.secret.as_bytes();
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!printed.contains(&hex) && !printed.contains(&format!("{secret:?}")));
    assert!(printed.contains("TokenSecret(..)"));
}
