//! Capabilities: frozen format, authentication of every bit, rotation, expiry.

use identity::{
    CAPABILITY_BYTES, Capability, CapabilityKey, CapabilityKeys, CapabilityRefusal, Grant,
    MAX_CAPABILITY_KEYS, Rights, VerifiedCache,
};
use types::{InodeId, SessionId};

const NOW: u64 = 1_800_000_000;

fn grant() -> Grant {
    Grant {
        session: SessionId(0x0102_0304_0506_0708),
        inode: InodeId(0x000a_0b0c_0d0e_0f10),
        rights: Rights::READ_WRITE,
        holder: 0x1112_1314_1516_1718,
        epoch: 0,
        valid_s: 0,
        expires: NOW + 60,
    }
}

/// A key with a known secret.
fn known_key() -> CapabilityKey {
    CapabilityKey::new(7, *b"0123456789abcdef0123456789abcdef")
}

/// The MAC was computed with Python's `hmac` over the first 40 bytes.
#[test]
fn the_form_is_frozen() {
    let capability = known_key().sign(&grant());
    let hex: String = capability.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = concat!(
        "01030000",
        "07000000",
        "0807060504030201",
        "100f0e0d0c0b0a00",
        "1817161514131211",
        "3cd2496b00000000",
        "69593ad159abc794e46a41ca152964b8",
        "0000000000000000"
    );
    assert_eq!(hex, expected);
    assert_eq!(known_key().verify(&capability), Ok(grant()));
}

/// The MAC was computed with Python's `hmac` over the first 40 bytes and the last 8.
#[test]
fn the_format_with_an_epoch_is_frozen() {
    let grant = Grant { epoch: 0x2122_2324_2526_2728, ..grant() };
    let capability = known_key().sign(&grant);
    let hex: String = capability.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = concat!(
        "02030000",
        "07000000",
        "0807060504030201",
        "100f0e0d0c0b0a00",
        "1817161514131211",
        "3cd2496b00000000",
        "b0db1204ab0eedff6ac2db2a1a5ef3d7",
        "2827262524232221"
    );
    assert_eq!(hex, expected);
    assert_eq!(known_key().verify(&capability), Ok(grant));
}

#[test]
fn every_bit_is_authenticated() {
    let keys = CapabilityKeys::create().unwrap();
    let mut cache = VerifiedCache::default();
    for epoch in [0, 1 << 44 | 77] {
        let grant = Grant { epoch, ..grant() };
        let capability = keys.sign(&grant);
        assert_eq!(cache.verify(&keys, &capability, NOW), Ok(grant));
        for bit in 0..8 * CAPABILITY_BYTES {
            let mut bytes = *capability.as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let altered = Capability::from_bytes(&bytes).unwrap();
            assert!(keys.verify(&altered, NOW).is_err(), "bit {bit} doesn't count");
            assert!(cache.verify(&keys, &altered, NOW).is_err(), "bit {bit} doesn't count in the cache");
        }
    }
    for length in [0, CAPABILITY_BYTES - 1, CAPABILITY_BYTES + 1] {
        assert_eq!(Capability::from_bytes(&vec![1; length]), Err(CapabilityRefusal::Malformed));
    }
}

#[test]
fn another_key_of_the_same_number_is_another_cluster() {
    let (ours, theirs) = (CapabilityKeys::create().unwrap(), CapabilityKeys::create().unwrap());
    assert_eq!(ours.ids(), theirs.ids());
    assert_eq!(ours.verify(&theirs.sign(&grant()), NOW), Err(CapabilityRefusal::Forged));
}

/// The MAC covers the validity.
#[test]
fn the_validity_is_authenticated() {
    let grant = Grant { valid_s: 600, ..grant() };
    let capability = known_key().sign(&grant);
    assert_eq!(capability.as_bytes()[2..4], 600_u16.to_le_bytes());
    assert_eq!(known_key().verify(&capability), Ok(grant));
    let mut altered = *capability.as_bytes();
    altered[2] ^= 1;
    let altered = Capability::from_bytes(&altered).unwrap();
    assert_eq!(known_key().verify(&altered), Err(CapabilityRefusal::Forged));
}

#[test]
fn a_valid_mac_over_an_invalid_grant_is_refused() {
    use ring::hmac;
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef0123456789abcdef");
    for (at, value) in [(0, 3), (1, 0), (1, 4), (1, 0xff)] {
        let mut bytes = *known_key().sign(&grant()).as_bytes();
        bytes[at] = value;
        let tag = hmac::sign(&key, &bytes[..40]);
        bytes[40..56].copy_from_slice(&tag.as_ref()[..16]);
        let capability = Capability::from_bytes(&bytes).unwrap();
        assert_eq!(known_key().verify(&capability), Err(CapabilityRefusal::Malformed), "byte {at} = {value}");
    }
}

#[test]
fn a_capability_ends_when_it_says_even_if_it_is_remembered() {
    let keys = CapabilityKeys::create().unwrap();
    let capability = keys.sign(&grant());
    let mut cache = VerifiedCache::default();
    for (now, expected) in
        [(NOW, Ok(grant())), (NOW + 59, Ok(grant())), (NOW + 60, Err(CapabilityRefusal::Expired))]
    {
        assert_eq!(keys.verify(&capability, now), expected);
        assert_eq!(cache.verify(&keys, &capability, now), expected);
    }
}

#[test]
fn rotation_keeps_what_is_in_use() {
    let mut keys = CapabilityKeys::create().unwrap();
    let first = keys.sign(&grant());
    let before = keys.clone();
    keys.stage().unwrap();
    // A key that other services may not have yet doesn't sign.
    assert_eq!(before.verify(&keys.sign(&grant()), NOW), Ok(grant()));
    let reloaded = CapabilityKeys::parse(&keys.render()).unwrap();
    assert_eq!(before.verify(&reloaded.sign(&grant()), NOW), Ok(grant()));
    let staged = keys.clone();
    keys.promote();
    let second = keys.sign(&grant());
    assert_eq!(second.key_id(), 2);
    assert_eq!(staged.verify(&second, NOW), Ok(grant()));
    assert_eq!(before.verify(&second, NOW), Err(CapabilityRefusal::UnknownKey(2)));
    assert_eq!(keys.verify(&first, NOW), Ok(grant()));
    for _ in 0..MAX_CAPABILITY_KEYS {
        keys.stage().unwrap();
    }
    assert_eq!(keys.ids().len(), MAX_CAPABILITY_KEYS);
    assert_eq!(keys.verify(&first, NOW), Err(CapabilityRefusal::UnknownKey(1)));
}

#[test]
fn clearing_the_cache_removes_dropped_keys() {
    let mut keys = CapabilityKeys::create().unwrap();
    let capability = keys.sign(&grant());
    let mut cache = VerifiedCache::default();
    cache.verify(&keys, &capability, NOW).unwrap();
    for _ in 0..MAX_CAPABILITY_KEYS {
        keys.stage().unwrap();
    }
    cache.clear();
    assert_eq!(cache.verify(&keys, &capability, NOW), Err(CapabilityRefusal::UnknownKey(1)));
}

#[test]
fn a_grant_is_limited_to_one_session_one_file_and_its_rights() {
    let check = |rights, session, inode, wanted| {
        Grant { rights, ..grant() }.check(SessionId(session), grant().holder, InodeId(inode), wanted)
    };
    let (session, inode) = (grant().session.0, grant().inode.0);
    let all = [Rights::READ, Rights::WRITE, Rights::READ_WRITE];
    for held in all {
        for wanted in all {
            let allowed = held == Rights::READ_WRITE || held == wanted;
            assert_eq!(check(held, session, inode, wanted).is_ok(), allowed, "{wanted:?} with {held:?}");
        }
    }
    assert_eq!(check(Rights::READ, session + 1, inode, Rights::READ), Err(CapabilityRefusal::OtherSession));
    assert_eq!(check(Rights::READ, session, inode + 1, Rights::READ), Err(CapabilityRefusal::OtherInode));
    let stolen = grant().check(grant().session, grant().holder + 1, grant().inode, Rights::READ);
    assert_eq!(stolen, Err(CapabilityRefusal::OtherHolder));
}

#[test]
fn macs_are_not_printed() {
    let key = known_key();
    let printed = format!("{:?} {:?}", key.sign(&grant()), key);
    let mac: String = key.sign(&grant()).as_bytes()[40..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        !printed.contains(&mac) && !printed.contains("0123456789abcdef") && !printed.contains("30313233")
    );
}
