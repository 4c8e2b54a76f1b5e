//! Which ends accept which in a handshake.

use crate::common::*;
use identity::tls::{UnauthenticatedClients, client_config, join_config, peer_name, server_config};
use identity::{
    Authority, Credentials, Error, Identity, JoinToken, Member, MemberKind, PendingKey, Protection,
    TokenParameters, TokenRecords, Validity,
};
use rustls::{CertificateError, ClientConfig};
use std::sync::Arc;
use types::NodeId;

fn is_refused(result: Result<Met, rustls::Error>) -> String {
    match result {
        Err(rustls::Error::InvalidCertificate(cause)) => cause.to_string(),
        other => panic!("not refused for its certificate: {other:?}"),
    }
}

#[test]
fn members_authenticate_each_other() {
    let authority = authority(CLUSTER);
    let (server, client, peer) = (node(&authority, 3), client(&authority, "login1"), node(&authority, 4));
    let met = meet(&client, &server, Some(3)).unwrap();
    assert_eq!(met.server_sees.as_ref().unwrap().role, Member::Client("login1".into()));
    assert_eq!(met.client_sees.as_ref().unwrap().role, Member::Node(NodeId(3)));
    assert_eq!(met.server_sees.unwrap().cluster, CLUSTER);
    assert_eq!(met.protection, Some(Protection::Encrypted));
    let met = meet(&peer, &server, None).unwrap();
    assert_eq!(met.server_sees.unwrap().role, Member::Node(NodeId(4)));
}

#[test]
fn another_node_than_the_expected_one_is_refused() {
    let authority = authority(CLUSTER);
    let cause = is_refused(meet(&client(&authority, "a"), &node(&authority, 3), Some(4)));
    assert!(cause.contains("node 3"), "{cause}");
}

#[test]
fn a_client_cannot_pose_as_a_node() {
    let authority = authority(CLUSTER);
    let impostor = client(&authority, "a");
    for meant in [None, Some(3)] {
        is_refused(meet(&node(&authority, 4), &impostor, meant));
    }
}

#[test]
fn members_of_another_cluster_are_refused_on_both_sides() {
    let (ours, theirs) = (authority(CLUSTER), authority(OTHER_CLUSTER));
    is_refused(meet(&client(&theirs, "a"), &node(&ours, 1), None));
    is_refused(meet(&client(&ours, "a"), &node(&theirs, 1), None));
}

/// Another authority that claims the same cluster.
#[test]
fn a_forged_authority_is_refused_on_both_sides() {
    let (ours, forged) = (authority(CLUSTER), authority(CLUSTER));
    is_refused(meet(&client(&forged, "a"), &node(&ours, 1), None));
    is_refused(meet(&client(&ours, "a"), &node(&forged, 1), None));
}

/// A member can't certify others, since its certificate isn't that of an authority.
#[test]
fn a_member_cannot_certify_others() {
    let ours = authority(CLUSTER);
    let member = node(&ours, 5);
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer_key = rcgen::KeyPair::from_pem(&private_key_of(&member)).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(member.certificate(), issuer_key).unwrap();
    let mut params = rcgen::CertificateParams::default();
    let uri = Member::Node(NodeId(1)).uri(CLUSTER);
    params.subject_alt_names = vec![rcgen::SanType::URI(uri.as_str().try_into().unwrap())];
    let forged = params.signed_by(&key, &issuer).unwrap();
    let pem = format!("{}{}", forged.pem(), authority_pem(&member));
    let forged = Credentials::from_pem(&pem, &key.serialize_pem()).unwrap();
    is_refused(meet(&forged, &node(&ours, 2), None));
    is_refused(meet(&node(&ours, 2), &forged, None));
}

fn private_key_of(credentials: &Credentials) -> String {
    let dir = tempfile::tempdir().unwrap();
    credentials.store(dir.path()).unwrap();
    std::fs::read_to_string(dir.path().join("identity.pem")).unwrap()
}

fn authority_pem(credentials: &Credentials) -> String {
    let chain = credentials.chain_pem();
    let at = chain.rfind("-----BEGIN").unwrap();
    chain[at..].to_string()
}

#[test]
fn expired_and_future_certificates_are_refused() {
    let authority = authority(CLUSTER);
    let role = Member::Client("a".into());
    let of =
        |from, until| authority.issue(&role, Validity { from: now() + from, until: now() + until }).unwrap();
    let server = node(&authority, 1);
    meet(&of(-100, 100), &server, None).unwrap();
    for (from, until) in [(-200, -100), (100, 200)] {
        is_refused(meet(&of(from, until), &server, None));
    }
    let old = Validity { from: now() - 200, until: now() - 100 };
    let old = authority.issue(&Member::Node(NodeId(1)), old).unwrap();
    is_refused(meet(&client(&authority, "a"), &old, None));
}

/// A client that has a certificate to verify the server with, but presents none.
fn nameless(authority: &Authority) -> Arc<ClientConfig> {
    join_config(&token(authority)).unwrap()
}

fn token(authority: &Authority) -> JoinToken {
    let offer = TokenParameters {
        addresses: vec!["mgmt:4711".into()],
        roles: MemberKind::Node.into(),
        expires: now() + 100,
        uses: 1,
    };
    TokenRecords::default().issue(authority, offer, now()).unwrap()
}

#[test]
fn clients_without_certificates_are_accepted_without_identity_or_refused() {
    let authority = authority(CLUSTER);
    let server = node(&authority, 1);
    let open = server_config(&server, Protection::Encrypted, UnauthenticatedClients::MayJoin).unwrap();
    let met = shake(nameless(&authority), open.clone(), peer_name(None)).unwrap();
    assert_eq!(met.server_sees, None);
    assert_eq!(met.client_sees.unwrap().role, Member::Node(NodeId(1)));
    let closed = server_config(&server, Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let error = shake(nameless(&authority), closed, peer_name(None)).unwrap_err();
    assert!(matches!(error, rustls::Error::NoCertificatesPresented), "{error}");
    // A presented certificate must be valid, even where none is required.
    let foreign = client(&crate::common::authority(CLUSTER), "a");
    let foreign = client_config(&foreign, Protection::Encrypted).unwrap();
    assert!(shake(foreign, open, peer_name(None)).is_err());
}

#[test]
fn a_token_pins_the_authority_and_the_cluster() {
    let (ours, theirs) = (authority(CLUSTER), authority(CLUSTER));
    let open = |server: &Credentials| {
        server_config(server, Protection::Encrypted, UnauthenticatedClients::MayJoin).unwrap()
    };
    let config = join_config(&token(&ours)).unwrap();
    shake(config.clone(), open(&node(&ours, 1)), peer_name(None)).unwrap();
    let error = shake(config.clone(), open(&node(&theirs, 1)), peer_name(None)).unwrap_err();
    assert_eq!(error, rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
    // A client's certificate of the right authority doesn't make it management.
    is_refused(shake(config, open(&client(&ours, "a")), peer_name(None)));
    // The right authority's certificate together with a certificate of another authority.
    let mixed = node(&theirs, 1);
    let at = mixed.chain_pem().rfind("-----BEGIN").unwrap();
    let chain = format!("{}{}", &mixed.chain_pem()[..at], authority_pem(&node(&ours, 1)));
    let mixed = Credentials::from_pem(&chain, &private_key_of(&mixed)).unwrap();
    is_refused(shake(join_config(&token(&ours)).unwrap(), open(&mixed), peer_name(None)));
    // The token of another cluster with the same authority's certificate.
    let other = JoinToken { cluster: OTHER_CLUSTER.into(), ..token(&ours) };
    is_refused(shake(join_config(&other).unwrap(), open(&node(&ours, 1)), peer_name(None)));
}

#[test]
fn a_connection_is_plain_only_if_both_ends_allow_it() {
    use Protection::{Encrypted, HandshakeOnly};
    let authority = authority(CLUSTER);
    let (server, client) = (node(&authority, 1), client(&authority, "a"));
    for (ours, theirs, agreed) in [
        (Encrypted, Encrypted, Encrypted),
        (Encrypted, HandshakeOnly, Encrypted),
        (HandshakeOnly, Encrypted, Encrypted),
        (HandshakeOnly, HandshakeOnly, HandshakeOnly),
    ] {
        let met = shake(
            client_config(&client, ours).unwrap(),
            server_config(&server, theirs, UnauthenticatedClients::Refused).unwrap(),
            peer_name(None),
        );
        assert_eq!(met.unwrap().protection, Some(agreed), "{ours} with {theirs}");
    }
    // A joining machine sends a secret and always encrypts.
    let open = server_config(&server, HandshakeOnly, UnauthenticatedClients::MayJoin).unwrap();
    let met = shake(nameless(&authority), open, peer_name(None)).unwrap();
    assert_eq!(met.protection, Some(Encrypted));
}

#[test]
fn other_protocols_are_refused() {
    let authority = authority(CLUSTER);
    let server =
        server_config(&node(&authority, 1), Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let config = client_config(&client(&authority, "a"), Protection::Encrypted).unwrap();
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let error = shake(Arc::new(config), server, peer_name(None)).unwrap_err();
    assert_eq!(error, rustls::Error::NoApplicationProtocol);
    assert_eq!(Protection::negotiated(None), None);
}

#[test]
fn a_joining_machine_keeps_its_key() {
    let authority = authority(CLUSTER);
    let pending = PendingKey::generate().unwrap();
    let role = Member::Node(NodeId(7));
    let chain = authority.certify(pending.request(), &role, Validity::of_node(now())).unwrap();
    assert!(!chain.contains("PRIVATE"));
    let joined = pending.certified(&chain).unwrap();
    assert_eq!(joined.identity().role, role);
    assert_eq!(joined.authority(), authority.certificate());
    meet(&joined, &node(&authority, 1), Some(1)).unwrap();
    meet(&client(&authority, "a"), &joined, Some(7)).unwrap();
}

/// A request is accepted only if its key has signed it; its other content is ignored.
#[test]
fn a_request_is_checked() {
    let authority = authority(CLUSTER);
    let pending = PendingKey::generate().unwrap();
    let role = Member::Client("a".into());
    let validity = Validity::of_client(now());
    // A DER sequence of the signed part (another sequence, shorter than 128 bytes), the algorithm
    // and the signature.
    let signed = 3..3 + 2 + pending.request()[4] as usize;
    assert_eq!((pending.request()[1], pending.request()[3]), (0x81, 0x30));
    for at in signed {
        let mut altered = pending.request().to_vec();
        altered[at] ^= 1;
        let result = authority.certify(&altered, &role, validity);
        assert!(matches!(result, Err(Error::BadRequest { .. })), "byte {at} changed unnoticed");
    }
    let bad = authority.certify(pending.request(), &Member::Client("../x".into()), validity);
    assert!(matches!(bad, Err(Error::BadClientName { .. })));

    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    let uri = Member::Node(NodeId(1)).uri(CLUSTER);
    params.subject_alt_names = vec![rcgen::SanType::URI(uri.as_str().try_into().unwrap())];
    let greedy = params.serialize_request(&key).unwrap();
    let chain = authority.certify(greedy.der(), &role, validity).unwrap();
    let credentials = Credentials::from_pem(&chain, &key.serialize_pem()).unwrap();
    assert_eq!(credentials.identity().role, role);
    assert_eq!(credentials.identity().expires, validity.until);
}

#[test]
fn a_cluster_that_would_be_ambiguous_in_a_name_is_refused() {
    for cluster in ["", "a/b", "1 2", "x"] {
        assert!(matches!(Authority::create(cluster, "test", now()), Err(Error::BadCertificate { .. })));
    }
}

/// A damaged certificate is refused or names another member; the parser never panics.
#[test]
fn a_damaged_certificate_is_read_or_refused() {
    let good = node(&authority(CLUSTER), 3);
    let identity = Identity::of(good.certificate()).unwrap();
    assert_eq!((identity.role, identity.cluster.as_str()), (Member::Node(NodeId(3)), CLUSTER));
    let (mut read, mut refused) = (0, 0);
    for at in 0..good.certificate().len() {
        for flip in [1, 0x80] {
            let mut damaged = good.certificate().to_vec();
            damaged[at] ^= flip;
            match Identity::of(&damaged.into()) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
            let _ = Identity::of(&good.certificate()[..at].to_vec().into()).unwrap_err();
        }
    }
    // Keys and signatures aren't checked, names and lengths are.
    assert!(read > 50 && refused > 50, "{read} read, {refused} refused");
}
