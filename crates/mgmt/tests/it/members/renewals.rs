//! Members renew their certificates: each its own, and no removed member.

use super::{Site, TWO, simulated};
use identity::{Identity, Member};
use net::{Caller, Handler, Proof, Transport};
use types::{Errno, Result};
use wire::{MgmtReply, MgmtRequest};

/// The answer to a connection that has proved this role, or none.
async fn renew(site: &Site, proved: Option<&str>, member: &str) -> Result<MgmtReply> {
    let identity = |role: Member| Identity { cluster: "c".into(), role, expires: 0, serial: String::new() };
    let caller = Caller {
        name: "the caller".into(),
        host: String::new(),
        proof: proved.map_or(Proof::Unauthenticated, |role| Proof::Member(identity(role.parse().unwrap()))),
        holder: 0,
        address: rt::net::Address::Abstract("test".into()),
        transport: Transport::Tcp,
        client: 1,
        core: 0,
        cluster: String::new(),
    };
    let management = site.cluster().management;
    let request = MgmtRequest::Renew { member: member.into(), csr: String::new() };
    management.handle_from(&caller, request, None).await
}

#[test]
fn a_member_renews_no_certificate_but_its_own() {
    simulated(2, TWO, async |site, nodes| {
        let (one, other) = (format!("node/{}", nodes[0].node), format!("node/{}", nodes[1].node));
        for member in [&*one, "client/a"] {
            let chain = format!("{member} for {member}");
            assert_eq!(renew(&site, Some(member), member).await, Ok(MgmtReply::Certificate { chain }));
        }
        let refused = [
            (None, "client/a"),
            (None, &*one),
            (Some("client/b"), "client/a"),
            (Some("client/a"), &*one),
            (Some(&*other), &*one),
            (Some(&*other), "client/a"),
        ];
        for (proved, member) in refused {
            let error = renew(&site, proved, member).await.unwrap_err();
            assert_eq!(error.errno, Errno::EACCES, "{proved:?} for {member}: {error}");
            assert!(!error.hint.is_empty(), "{error}");
        }
    });
}

#[test]
fn a_removed_node_renews_nothing() {
    simulated(2, TWO, async |site, nodes| {
        let removed = format!("node/{}", nodes[1].node.0 + 1);
        let error = renew(&site, Some(&removed), &removed).await.unwrap_err();
        assert!(error.errno == Errno::ENODEV && error.message.contains("removed"), "{error}");
    });
}
