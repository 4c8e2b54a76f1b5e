//! Findings about certificates that expire soon.

use super::finding;
use identity::{AUTHORITY_VALIDITY_S, NODE_VALIDITY_S, expires_soon};
use std::collections::BTreeMap;
use types::{ClusterMap, NodeId, Timestamp};
use wire::mgmt::{ClientInfo, ClientState, HealthCode, HealthFinding, Verdict};

/// Certificates of a cluster.
pub struct Certificates {
    /// Expiry of those of nodes, Unix seconds.
    pub nodes: BTreeMap<NodeId, i64>,
    /// Recorded clients.
    pub clients: Vec<ClientInfo>,
    /// Expiry of the authority's certificate.
    pub authority: Option<i64>,
}

/// Certificates that expire within 30 days, and expired ones.
pub fn certificate_findings(
    map: &ClusterMap,
    certificates: &Certificates,
    now_s: i64,
    findings: &mut Vec<HealthFinding>,
) {
    if let Some(ends_s) = certificates.authority
        && expires_soon(ends_s, AUTHORITY_VALIDITY_S, now_s)
    {
        let what = format!("the certificate of the cluster's authority {}", end(ends_s, now_s));
        let hint = "no certificate is valid beyond that: move the files to a new cluster before".into();
        findings.push(finding(HealthCode::AuthorityCertificate, Verdict::Critical, what, hint));
    }
    for node in &map.nodes {
        let ends_s = certificates.nodes.get(&node.id).copied();
        let Some(ends_s) = ends_s.filter(|ends_s| expires_soon(*ends_s, NODE_VALIDITY_S, now_s)) else {
            continue;
        };
        let verdict = if ends_s <= now_s { Verdict::Critical } else { Verdict::Warning };
        let what = format!("the certificate of node {} ({}) {}", node.id, node.name, end(ends_s, now_s));
        let hint = "weft serve there renews it: its log shows why it couldn't".into();
        findings.push(finding(HealthCode::NodeCertificate, verdict, what, hint));
    }
    findings.extend(certificates.clients.iter().filter_map(|client| client_finding(client, now_s)));
}

fn client_finding(client: &ClientInfo, now_s: i64) -> Option<HealthFinding> {
    let ClientInfo { name, ends_s, .. } = client;
    // An expiry that the administrator has set isn't a finding afterwards.
    let was_meant = client.last_s.is_some_and(|last_s| last_s <= *ends_s);
    let hint = match client.state {
        ClientState::Valid | ClientState::Revoked => return None,
        ClientState::Expired if was_meant => return None,
        ClientState::Expired => {
            format!(
                "weft client add {name} creates another cluster file, weft client revoke {name} removes the client"
            )
        }
        ClientState::ExpiresSoon if was_meant => {
            format!("weft client revoke {name}, then weft client add {name}, if it is still needed")
        }
        ClientState::ExpiresSoon => {
            "a mounted client renews it by itself: mount it, or check the log of its mount".into()
        }
    };
    let what = format!("the certificate of client {name} {}", end(*ends_s, now_s));
    Some(finding(HealthCode::ClientCertificate, Verdict::Warning, what, hint))
}

fn end(ends_s: i64, now_s: i64) -> String {
    let at = Timestamp { secs: ends_s, nanos: 0 };
    let verb = if ends_s <= now_s { "expired on" } else { "ends on" };
    format!("{verb} {at}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Node, NodeState};

    const NOW: i64 = 1_800_000_000;
    const DAY: i64 = 24 * 3600;

    fn client(name: &str, state: ClientState, last_s: Option<i64>) -> ClientInfo {
        let name = name.into();
        ClientInfo { name, state, ends_s: NOW + DAY, last_s, added_s: 0, sessions: None }
    }

    fn findings(certificates: &Certificates) -> Vec<(Verdict, String)> {
        let node = |id: u32| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![],
            roles: vec![],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        let map = ClusterMap { nodes: vec![node(1), node(2)], ..ClusterMap::default() };
        let mut findings = Vec::new();
        certificate_findings(&map, certificates, NOW, &mut findings);
        assert!(findings.iter().all(|finding| !finding.hint.is_empty()));
        findings.into_iter().map(|finding| (finding.verdict, finding.what)).collect()
    }

    #[test]
    fn expiring_certificates_are_findings_thirty_days_before() {
        let nodes = |days: i64| BTreeMap::from([(NodeId(2), NOW + days * DAY)]);
        let of_nodes = |days| Certificates { nodes: nodes(days), clients: vec![], authority: None };
        assert!(findings(&of_nodes(30)).is_empty());
        let (verdict, what) = findings(&of_nodes(29)).remove(0);
        assert!(verdict == Verdict::Warning && what.contains("node 2 (n2) ends on 20"), "{what}");
        let (verdict, what) = findings(&of_nodes(-1)).remove(0);
        assert!(verdict == Verdict::Critical && what.contains("expired on"), "{what}");
        let authority = |days: i64| Certificates { authority: Some(NOW + days * DAY), ..of_nodes(99) };
        assert!(findings(&authority(31)).is_empty());
        assert_eq!(findings(&authority(29))[0].0, Verdict::Critical);
    }

    #[test]
    fn expired_clients_are_findings_unless_expiry_was_planned() {
        use ClientState::{Expired, ExpiresSoon, Revoked, Valid};
        let last_s = Some(NOW + DAY);
        let clients = vec![
            client("valid", Valid, None),
            client("soon", ExpiresSoon, None),
            client("last", ExpiresSoon, last_s),
            client("over", Expired, None),
            client("meant", Expired, last_s),
            client("revoked", Revoked, None),
        ];
        let findings = findings(&Certificates { nodes: BTreeMap::new(), clients, authority: None });
        let named = |name: &str| findings.iter().any(|(_, what)| what.contains(&format!("client {name} ")));
        assert!(findings.len() == 3 && named("soon") && named("last") && named("over"), "{findings:?}");
    }
}
