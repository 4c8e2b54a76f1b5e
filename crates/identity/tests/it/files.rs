//! Files on disk: modes, round trips, damage.

use crate::common::*;
use identity::{
    Authority, CapabilityKeys, Credentials, Error, MemberKind, TokenParameters, TokenRecords,
    require_private_directory,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_authority_survives_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("ca");
    let authority = authority(CLUSTER);
    authority.store(&home).unwrap();
    assert_eq!(names(&home), ["ca.crt", "ca.key"]);
    assert_eq!((mode(&home), mode(&home.join("ca.key"))), (0o700, 0o600));
    let loaded = Authority::load(&home).unwrap();
    assert_eq!(loaded.cluster(), CLUSTER);
    assert_eq!(loaded.certificate(), authority.certificate());
    // Members from before and after the restart accept each other.
    meet(&client(&loaded, "a"), &node(&authority, 1), Some(1)).unwrap();
    meet(&client(&authority, "a"), &node(&loaded, 1), Some(1)).unwrap();
}

#[test]
fn an_authority_is_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    authority(CLUSTER).store(dir.path()).unwrap();
    let before = fs::read(dir.path().join("ca.key")).unwrap();
    let error = authority(CLUSTER).store(dir.path()).unwrap_err();
    assert!(matches!(error, Error::AuthorityExists { .. }), "{error}");
    assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), before);
}

#[test]
fn an_authority_with_another_key_is_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    authority(CLUSTER).store(one.path()).unwrap();
    authority(CLUSTER).store(two.path()).unwrap();
    fs::copy(two.path().join("ca.key"), one.path().join("ca.key")).unwrap();
    assert!(matches!(Authority::load(one.path()), Err(Error::Damaged { .. })));
}

#[test]
fn a_members_certificate_is_no_authority() {
    let dir = tempfile::tempdir().unwrap();
    let member = node(&authority(CLUSTER), 1);
    member.store(dir.path()).unwrap();
    fs::copy(dir.path().join("identity.pem"), dir.path().join("ca.key")).unwrap();
    fs::write(dir.path().join("ca.crt"), member.chain_pem()).unwrap();
    assert!(matches!(Authority::load(dir.path()), Err(Error::Damaged { .. })));
}

#[test]
fn credentials_survive_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority(CLUSTER);
    let credentials = client(&authority, "login1");
    credentials.store(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["identity.pem"]);
    assert_eq!(mode(&dir.path().join("identity.pem")), 0o600);
    let loaded = Credentials::load(dir.path()).unwrap();
    assert_eq!(loaded.identity(), credentials.identity());
    assert_eq!(loaded.authority(), authority.certificate());
    meet(&loaded, &node(&authority, 1), None).unwrap();
    // A renewal replaces the file atomically.
    let renewed = client(&authority, "login1");
    renewed.store(dir.path()).unwrap();
    assert_eq!(Credentials::load(dir.path()).unwrap().identity(), renewed.identity());
    assert_eq!(names(dir.path()), ["identity.pem"]);
}

#[test]
fn credentials_that_do_not_belong_together_are_refused() {
    let authority = authority(CLUSTER);
    let (one, two) = (node(&authority, 1), node(&authority, 2));
    let dir = tempfile::tempdir().unwrap();
    two.store(dir.path()).unwrap();
    let key_of_two = fs::read_to_string(dir.path().join("identity.pem")).unwrap();
    assert!(matches!(Credentials::from_pem(one.chain_pem(), &key_of_two), Err(Error::BadCertificate { .. })));
    let alone = &one.chain_pem()[..one.chain_pem().rfind("-----BEGIN").unwrap()];
    assert!(matches!(Credentials::from_pem(alone, &key_of_two), Err(Error::BadCertificate { .. })));
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority(CLUSTER);
    authority.store(dir.path()).unwrap();
    node(&authority, 1).store(dir.path()).unwrap();
    for (file, exposed) in [("ca.key", 0o640), ("identity.pem", 0o604)] {
        fs::set_permissions(dir.path().join(file), Permissions::from_mode(exposed)).unwrap();
    }
    let error = Authority::load(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Exposed { mode: 0o640, .. }), "{error}");
    let error = Credentials::load(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Exposed { mode: 0o604, .. }), "{error}");
}

#[test]
fn directories_in_which_others_change_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, is_private) in [(0o700, true), (0o755, true), (0o775, false), (0o757, false), (0o1777, false)]
    {
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        let looked = require_private_directory(dir.path());
        assert_eq!(looked.is_ok(), is_private, "{mode:o}: {looked:?}");
    }
    assert!(require_private_directory(&dir.path().join("absent")).is_ok());
}

#[test]
fn files_of_another_user_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    node(&authority(CLUSTER), 1).store(dir.path()).unwrap();
    let file = dir.path().join("identity.pem");
    if [dir.path(), &file].iter().any(|path| chown(path, Some(12_345), None).is_err()) {
        println!("skipped: only root gives files away");
        return;
    }
    let error = Credentials::load(dir.path()).unwrap_err();
    assert!(matches!(error, Error::OtherOwner { uid: 12_345, .. }), "{error}");
    let error = require_private_directory(dir.path()).unwrap_err();
    assert!(matches!(error, Error::OtherOwner { uid: 12_345, .. }), "{error}");
}

#[test]
fn a_draft_of_a_crash_is_replaced_with_the_right_mode() {
    let dir = tempfile::tempdir().unwrap();
    let draft = dir.path().join("identity.pem.draft");
    fs::write(&draft, "half").unwrap();
    fs::set_permissions(&draft, Permissions::from_mode(0o666)).unwrap();
    node(&authority(CLUSTER), 1).store(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["identity.pem"]);
    assert_eq!(mode(&dir.path().join("identity.pem")), 0o600);
}

#[test]
fn records_and_keys_survive_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, keys) = (dir.path().join("tokens.toml"), dir.path().join("capabilities.toml"));
    assert_eq!(TokenRecords::load(&tokens).unwrap(), TokenRecords::default());
    let mut records = TokenRecords::default();
    for kind in MemberKind::ALL {
        let offer = TokenParameters {
            addresses: vec!["a:1".into()],
            roles: kind.into(),
            expires: now() + 9,
            uses: 3,
        };
        records.issue(&authority(CLUSTER), offer, now()).unwrap();
    }
    records.store(&tokens).unwrap();
    assert_eq!(TokenRecords::load(&tokens).unwrap(), records);
    let mut ring = CapabilityKeys::create().unwrap();
    ring.stage().unwrap();
    ring.store(&keys).unwrap();
    assert_eq!(CapabilityKeys::load(&keys).unwrap().render(), ring.render());
    assert_eq!((mode(&tokens), mode(&keys)), (0o600, 0o600));
    assert_eq!(names(dir.path()), ["capabilities.toml", "tokens.toml"]);
    fs::write(&keys, "format = 2").unwrap();
    assert!(matches!(CapabilityKeys::load(&keys), Err(Error::Damaged { .. })));
}
