//! Records of clients: names are issued, renewed, revoked and issued again.

use crate::common::{CLUSTER, authority};
use identity::{
    CLOCK_SKEW_S, CertificateIssue, CertificateTerms, ClientRecords, ClientStatus, EXPIRY_WARNING_S, Error,
    Identity, MAX_REVOKED,
};
use std::fs;

const NOW: i64 = 1_800_000_000;
const DAY: i64 = 24 * 3600;
const YEAR: CertificateTerms = CertificateTerms { end: None, validity_s: 365 * DAY };

/// The certificate made for an issue.
fn certificate(name: &str, issue: CertificateIssue) -> Identity {
    let authority = authority(CLUSTER);
    authority.issue_to_client(name, issue.validity, issue.number).unwrap().identity().clone()
}

fn standing(records: &ClientRecords, name: &str, now: i64) -> Option<ClientStatus> {
    records.list().iter().find(|record| record.name == name).map(|record| record.status(now))
}

#[test]
fn a_certificate_has_the_number_that_it_was_issued_under() {
    let mut records = ClientRecords::default();
    let first = records.add("login1", YEAR, NOW).unwrap();
    let second = records.add("login2", YEAR, NOW).unwrap();
    assert!(second.number > first.number && first.number >= NOW as u64);
    let identity = certificate("login1", first);
    assert_eq!(identity.issue_number(), Some(first.number));
    assert_eq!(identity.expires, NOW + YEAR.validity_s);
    assert_eq!(identity.role.to_string(), "client/login1");
    // Other certificates have none.
    let other = crate::common::client(&authority(CLUSTER), "login1").identity().clone();
    assert_eq!(other.issue_number(), None);
}

#[test]
fn a_revoked_name_can_be_reused() {
    let mut records = ClientRecords::default();
    let old = records.add("login1", YEAR, NOW).unwrap();
    assert!(matches!(records.add("login1", YEAR, NOW + 1), Err(Error::ClientExists { .. })));
    assert!(matches!(records.revoke("login2", NOW), Err(Error::UnknownClient { .. })));
    records.revoke("login1", NOW + 2).unwrap();
    let revoked = records.revoked();
    assert!(revoked.len() == 1 && revoked[0].name == "login1" && revoked[0].until >= old.number);
    assert_eq!(standing(&records, "login1", NOW + 2), Some(ClientStatus::Revoked));
    let present = certificate("login1", old);
    assert!(matches!(
        records.renew("login1", &present, old.validity.until - 9),
        Err(Error::RevokedClient { .. })
    ));
    let new = records.add("login1", YEAR, NOW + 2).unwrap();
    assert!(new.number > records.revoked()[0].until, "it would be refused, too");
    assert_eq!(standing(&records, "login1", NOW + 2), Some(ClientStatus::Valid));
    // A revocation isn't needed any more once its certificates have expired.
    let ends = NOW + 2 + YEAR.validity_s;
    assert!(ends >= old.validity.until && !records.purge(ends + CLOCK_SKEW_S - 1));
    assert!(records.purge(ends + CLOCK_SKEW_S) && records.revoked().is_empty());
    assert_eq!(standing(&records, "login1", NOW), Some(ClientStatus::Valid));
}

#[test]
fn a_revocation_covers_certificates_that_an_older_copy_of_the_records_lacks() {
    let mut records = ClientRecords::default();
    let issue = records.add("a", YEAR, NOW).unwrap();
    let mut older = records.clone();
    let due = issue.validity.renew_at();
    let renewed = records.renew("a", &certificate("a", issue), due).unwrap();
    older.revoke("a", due + 1).unwrap();
    let until = older.revoked()[0].until;
    assert!(until >= renewed.number, "{} is accepted", renewed.number);
    assert!(older.add("a", YEAR, due + 1).unwrap().number > until);
}

#[test]
fn certificates_are_renewed_up_to_the_end_that_was_chosen() {
    let mut records = ClientRecords::default();
    let issue = records.add("a", YEAR, NOW).unwrap();
    let present = certificate("a", issue);
    assert_eq!(issue.validity.renew_at(), NOW + YEAR.validity_s - YEAR.validity_s / 3);
    assert!(matches!(records.renew("a", &present, NOW + DAY), Err(Error::NotDueForRenewal { .. })));
    let due = issue.validity.renew_at();
    let next = records.renew("a", &present, due).unwrap();
    assert_eq!(next.validity.until, due + YEAR.validity_s);
    assert!(next.number > issue.number);
    assert_eq!(records.list()[0].expires, next.validity.until);
    let terms = CertificateTerms { end: Some(NOW + 400 * DAY), ..YEAR };
    let issue = records.add("b", terms, NOW).unwrap();
    let next = records.renew("b", &certificate("b", issue), issue.validity.renew_at()).unwrap();
    assert_eq!(next.validity.until, NOW + 400 * DAY);
    let late = records.renew("b", &certificate("b", next), next.validity.until - 9);
    assert!(matches!(late, Err(Error::NotRenewed { .. })));
    let nobody = records.renew("c", &present, due);
    assert!(matches!(nobody, Err(Error::UnknownClient { .. })));
}

#[test]
fn a_revocation_outlasts_certificates_that_older_records_do_not_know() {
    let mut records = ClientRecords::default();
    let issue = records.add("a", YEAR, NOW).unwrap();
    let older = records.clone();
    let due = issue.validity.renew_at();
    let renewed = records.renew("a", &certificate("a", issue), due).unwrap();
    // The records were restored from a copy in which the certificate has expired by now.
    let (mut records, now) = (older, issue.validity.until + DAY);
    assert!(renewed.validity.until > now + DAY);
    records.revoke("a", now).unwrap();
    assert!(!records.purge(renewed.validity.until));
    assert!(records.revoked()[0].until >= renewed.number);
    let present = certificate("a", renewed);
    assert!(matches!(records.renew("a", &present, now), Err(Error::RevokedClient { .. })));
}

#[test]
fn a_certificate_without_a_number_is_renewed_unless_it_was_revoked() {
    let mut records = ClientRecords::default();
    records.add("login1", YEAR, NOW).unwrap();
    // Like certificates from before clients were recorded.
    let present = crate::common::client(&authority(CLUSTER), "login1").identity().clone();
    let due = present.expires - DAY;
    let renewed = records.renew("login1", &present, due).unwrap();
    assert!(renewed.validity.until > present.expires);
    records.revoke("login1", due).unwrap();
    assert!(matches!(records.renew("login1", &present, due), Err(Error::RevokedClient { .. })));
}

#[test]
fn administrators_are_warned_thirty_days_before_expiry() {
    let mut records = ClientRecords::default();
    let end = NOW + 365 * DAY;
    records.add("a", CertificateTerms { end: Some(end), ..YEAR }, NOW).unwrap();
    assert_eq!(standing(&records, "a", end - EXPIRY_WARNING_S), Some(ClientStatus::Valid));
    assert_eq!(standing(&records, "a", end - EXPIRY_WARNING_S + 1), Some(ClientStatus::ExpiresSoon));
    assert_eq!(standing(&records, "a", end), Some(ClientStatus::Expired));
    // An expired name can be reused; later it is removed.
    records.add("a", YEAR, end).unwrap();
    assert!(records.purge(end + 500 * DAY) && records.list().is_empty());
}

#[test]
fn invalid_requests_are_refused_without_changes() {
    let mut records = ClientRecords::default();
    let past = CertificateTerms { end: Some(NOW), ..YEAR };
    for (name, terms) in
        [("", YEAR), ("a b", YEAR), ("a", past), ("a", CertificateTerms { validity_s: 0, ..YEAR })]
    {
        records.add(name, terms, NOW).unwrap_err();
    }
    assert_eq!(records, ClientRecords::default());
}

#[test]
fn revocations_are_bounded() {
    let mut records = ClientRecords::default();
    for count in 0..=MAX_REVOKED {
        records.add(&format!("c{count}"), YEAR, NOW).unwrap();
    }
    for count in 0..MAX_REVOKED {
        records.revoke(&format!("c{count}"), NOW).unwrap();
    }
    let surplus = records.revoke(&format!("c{MAX_REVOKED}"), NOW);
    assert!(matches!(surplus, Err(Error::TooManyRevoked(MAX_REVOKED))));
    records.revoke("c0", NOW).unwrap();
}

#[test]
fn records_survive_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clients.toml");
    assert_eq!(ClientRecords::load(&path).unwrap(), ClientRecords::default());
    let mut records = ClientRecords::default();
    for name in ["b", "a", "c"] {
        records.add(name, CertificateTerms { end: (name == "a").then_some(NOW + DAY), ..YEAR }, NOW).unwrap();
    }
    records.revoke("b", NOW).unwrap();
    records.store(&path).unwrap();
    assert_eq!(ClientRecords::load(&path).unwrap(), records);
    // Numbers continue where they were.
    let (mut again, mut records) = (ClientRecords::load(&path).unwrap(), records);
    assert_eq!(again.add("b", YEAR, NOW).unwrap(), records.add("b", YEAR, NOW).unwrap());
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("last = ", "last = 0 # ")).unwrap();
    assert!(matches!(ClientRecords::load(&path), Err(Error::Damaged { .. })));
}

#[test]
fn a_revocation_that_is_missing_in_the_file_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clients.toml");
    let mut records = ClientRecords::default();
    records.add("a", YEAR, NOW).unwrap();
    records.revoke("a", NOW).unwrap();
    records.store(&path).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let (before, after) = whole.split_once("revoked = ").unwrap();
    let (_, after) = after.split_once('\n').unwrap();
    fs::write(&path, format!("{before}{after}")).unwrap();
    assert!(matches!(ClientRecords::load(&path), Err(Error::Damaged { .. })));
    fs::write(&path, whole).unwrap();
    assert_eq!(ClientRecords::load(&path).unwrap(), records);
}
