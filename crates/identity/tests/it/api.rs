//! The certificate of an HTTP interface: it has names for HTTP clients, and names no member of the
//! cluster.

use super::common::{CLUSTER, authority, client, node, now, shake};
use identity::tls::{api_config, client_config, peer_name};
use identity::{Credentials, Identity, PendingKey, Protection};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn an_api_certificate_names_no_member() {
    let authority = authority(CLUSTER);
    let key = PendingKey::generate().unwrap();
    let chain = authority.certify_api(key.request(), &names(&["localhost", "::1"]), now()).unwrap();
    let certificate = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
    Identity::of(&certificate).unwrap_err();
    Credentials::from_pem(&chain, "").unwrap_err();
    // A member that expects a node doesn't accept it as one.
    let interface = api_config(&node(&authority, 1), key, &chain).unwrap();
    let member = client_config(&client(&authority, "login1"), Protection::Encrypted).unwrap();
    shake(member, interface, peer_name(None)).unwrap_err();
}

#[test]
fn an_api_certificate_has_only_host_names() {
    let authority = authority(CLUSTER);
    let key = PendingKey::generate().unwrap();
    let many: Vec<String> = (0..65).map(|at| format!("h{at}")).collect();
    let uri = format!("weft://{CLUSTER}/node/1");
    for bad in [vec![], many, names(&["a b"]), names(&[""]), names(&[&uri]), names(&["host:1"])] {
        authority.certify_api(key.request(), &bad, now()).unwrap_err();
    }
    authority.certify_api(key.request(), &names(&["weft.example.com", "10.0.0.1"]), now()).unwrap();
    authority.certify_api(b"no request", &names(&["localhost"]), now()).unwrap_err();
}
