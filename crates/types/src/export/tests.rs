use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::collection::vec;
use proptest::prelude::*;

fn rule(text: &str, access: ExportAccess) -> ExportRule {
    ExportRule { clients: text.parse().unwrap(), export: Export { access, ..Export::default() } }
}

fn access(rules: &[ExportRule], ip: &str, local: bool) -> ExportAccess {
    export_for(rules, &at(ip, local)).access
}

/// A client without a certificate name.
fn at(ip: &str, local: bool) -> ClientOrigin<'static> {
    ClientOrigin { name: None, ip: Some(ip.parse().unwrap()), local }
}

#[test]
fn client_rules_precede_network_rules() {
    use ExportAccess::{None, Ro, Rw};
    let rules =
        [rule("local", Ro), rule("10.1.2.3", None), rule("client:login1", Rw), rule("client:guest", None)];
    let access = |name, ip, local| export_for(&rules, &ClientOrigin { name, ..at(ip, local) }).access;
    assert_eq!(access(Some("login1"), "10.1.2.3", false), Rw);
    assert_eq!(access(Some("login1"), "10.1.2.3", true), Rw);
    assert_eq!(access(Some("guest"), "192.168.0.1", false), None);
    assert_eq!(access(Some("login2"), "10.1.2.3", false), None);
    assert_eq!(access(Some("login2"), "10.1.2.3", true), Ro);
    // A client without a certificate has no name.
    assert_eq!(access(Option::None, "192.168.0.1", false), Rw);
}

#[test]
fn the_most_specific_rule_holds() {
    use ExportAccess::{None, Ro, Rw};
    let rules = [
        rule("0.0.0.0/0", None),
        rule("10.1.0.0/16", Ro),
        rule("10.1.2.0/24", Rw),
        rule("10.1.2.3", None),
        rule("fd00::/8", Ro),
        rule("local", Rw),
    ];
    for (ip, expected) in [
        ("192.168.0.1", None),
        ("10.1.9.9", Ro),
        ("::ffff:10.1.9.9", Ro),
        ("10.1.2.9", Rw),
        ("10.1.2.3", None),
        ("fd00::7", Ro),
        ("2001:db8::1", Rw),
    ] {
        assert_eq!(access(&rules, ip, false), expected, "{ip}");
        assert_eq!(access(&rules, ip, true), Rw, "{ip} on a node");
    }
    assert_eq!(export_for(&rules, &ClientOrigin::default()), Export::default());
    assert_eq!(export_for(&[], &at("10.1.2.3", true)), Export::default());
}

#[test]
fn rules_are_read_as_they_are_written() {
    let text = r#"{"clients":"10.1.0.0/16","access":"ro","squash":"root","anon_uid":99,"anon_gid":98}"#;
    let rule: ExportRule = serde_json::from_str(text).unwrap();
    assert_eq!(rule.export.squash, Squash::Root);
    assert_eq!(serde_json::to_string(&rule).unwrap(), text);
    let short: ExportRule = serde_json::from_str(r#"{"clients":"local"}"#).unwrap();
    assert_eq!((short.clients, short.export), (ExportClients::Local, Export::default()));
    let named: ExportRule = serde_json::from_str(r#"{"clients":"client:login1"}"#).unwrap();
    assert_eq!(named.clients, ExportClients::Client("login1".into()));
    assert_eq!(named.clients.to_string(), "client:login1");
    for wrong in ["client:", "client:a b", "client:-a"] {
        let error = wrong.parse::<ExportClients>().unwrap_err();
        assert!(error.errno == Errno::EINVAL && error.hint.contains("weft client list"), "{wrong}: {error}");
    }
    for wrong in ["", "locals", "10.0.0.1/8", "10.0.0.0/33", "fd00::/129", "host.example"] {
        let error = wrong.parse::<ExportClients>().unwrap_err();
        assert!(error.errno == Errno::EINVAL && error.hint.contains("local"), "{wrong}: {error}");
    }
}

#[test]
fn squashed_users_become_anonymous() {
    let user = |uid, gid| Credentials { uid, gid, pid: 7 };
    let export = |squash| Export { squash, anon_uid: 99, anon_gid: 98, ..Export::default() };
    for (squash, before, after) in [
        (Squash::None, user(0, 0), user(0, 0)),
        (Squash::Root, user(0, 0), user(99, 98)),
        (Squash::Root, user(0, 5), user(99, 98)),
        (Squash::Root, user(5, 0), user(5, 98)),
        (Squash::Root, user(5, 6), user(5, 6)),
        (Squash::All, user(5, 6), user(99, 98)),
        (Squash::All, user(0, 0), user(99, 98)),
    ] {
        assert_eq!(export(squash).squashed(before), after, "{squash:?} {before:?}");
    }
    assert_eq!(export(Squash::Root).squashed_groups(vec![0, 4]), [4]);
    assert!(export(Squash::All).squashed_groups(vec![0, 4]).is_empty());
}

/// The first bits of an address as text: slow and simple.
fn prefix(ip: IpAddr, bits: u8) -> String {
    let all: String = match ip {
        IpAddr::V4(ip) => ip.octets().iter().map(|byte| format!("{byte:08b}")).collect(),
        IpAddr::V6(ip) => ip.octets().iter().map(|byte| format!("{byte:08b}")).collect(),
    };
    format!("{}{}", if ip.is_ipv4() { "4:" } else { "6:" }, &all[..bits.into()])
}

/// Draws from few addresses, so that prefixes match often.
fn address() -> impl Strategy<Value = IpAddr> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(10), Just(128), Just(255)];
    let v4 = vec(byte.clone(), 4).prop_map(|b| IpAddr::V4(Ipv4Addr::new(b[0], b[1], b[2], b[3])));
    let v6 = vec(byte, 16).prop_map(|b| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&b);
        octets[0] = 0xfd;
        IpAddr::V6(Ipv6Addr::from(octets))
    });
    prop_oneof![3 => v4, 1 => v6]
}

/// An address whose bits after the prefix are zero, built from its text.
fn network() -> impl Strategy<Value = (IpAddr, u8)> {
    (address(), 0u8..=128).prop_map(|(ip, bits)| match ip {
        IpAddr::V4(v4) => {
            let bits = bits % 33;
            let kept = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            (IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & kept)), bits)
        }
        IpAddr::V6(v6) => {
            let kept = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            (IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & kept)), bits)
        }
    })
}

proptest! {
    /// The model compares prefixes as text, longest first.
    #[test]
    fn rules_hold_as_in_a_naive_model(networks in vec(network(), 0..12), ip in address(), local: bool, local_rule: bool) {
        let mut known = std::collections::BTreeMap::new();
        for (index, (first, bits)) in networks.iter().enumerate() {
            known.entry(prefix(*first, *bits)).or_insert((format!("{first}/{bits}"), index as u32));
        }
        let made = |clients: &str, mark| ExportRule {
            clients: clients.parse().unwrap(),
            export: Export { anon_uid: mark, ..Export::default() },
        };
        let mut rules: Vec<ExportRule> = known.values().map(|(text, mark)| made(text, *mark)).collect();
        if local_rule {
            rules.insert(rules.len() / 2, made("local", 1000));
        }
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let by_prefix = (0..=most).rev().find_map(|bits| known.get(&prefix(ip, bits)).map(|(_, mark)| *mark));
        let expected = if local && local_rule { Some(1000) } else { by_prefix };
        let client = ClientOrigin { name: None, ip: Some(ip), local };
        prop_assert_eq!(export_for(&rules, &client).anon_uid, expected.unwrap_or(NOBODY));
    }
}
