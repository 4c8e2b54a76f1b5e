//! Export rules of a caller, by its proved name and the address that it connects from.

use crate::{Caller, Proof, Transport};
use identity::Member;
use parking_lot::RwLock;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{ClientOrigin, ClusterMap, Export, ExportClients, ExportRule, HashMap, export_for};

/// Callers whose rule is cached. When the cache is full it is cleared and refilled. About 3 MiB.
const MAX_CACHED_RULES: usize = 65_536;

/// The export rules of the cluster map, as a service applies them.
#[derive(Default)]
pub struct Exports {
    /// Epoch of the map that the rules are from; the lowest bit says whether there are any rules.
    /// Most clusters have none, which costs one atomic load.
    state: AtomicU64,
    rules: RwLock<Rules>,
}

#[derive(Default)]
struct Rules {
    rules: Vec<ExportRule>,
    /// Addresses of the cluster's nodes.
    nodes: Vec<IpAddr>,
    /// Whether some rules match a client's name.
    has_names: bool,
    /// Cached results, by [`Caller::holder`] (where names count), by address, and by whether the
    /// caller is on this machine.
    cache: HashMap<(u64, IpAddr, bool), Export>,
}

impl Rules {
    fn of(&self, name: Option<&str>, ip: Option<IpAddr>, on_host: bool) -> Export {
        let is_node = |ip: IpAddr| ip.is_loopback() || self.nodes.contains(&ip);
        let local = on_host || ip.is_some_and(is_node);
        export_for(&self.rules, &ClientOrigin { name, ip, local })
    }
}

impl Exports {
    /// Applies the rules of a map from now on.
    pub fn apply_map(&self, map: &ClusterMap) {
        let state = map.epoch.0 << 1 | u64::from(!map.exports.is_empty());
        if self.state.load(Ordering::Acquire) == state {
            return;
        }
        let mut rules = self.rules.write();
        let addresses = map.nodes.iter().flat_map(|node| &node.addresses);
        let ips = addresses.filter_map(|address| address.parse::<std::net::SocketAddr>().ok());
        rules.nodes = ips.map(|address| address.ip().to_canonical()).collect();
        rules.rules = map.exports.clone();
        rules.has_names = map.exports.iter().any(|rule| matches!(rule.clients, ExportClients::Client(_)));
        rules.cache.clear();
        self.state.store(state, Ordering::Release);
    }

    /// Returns the rule for a caller. Nodes of the cluster may do everything. Where connections
    /// aren't authenticated, the service must recognize nodes itself.
    pub fn of(&self, caller: &Caller) -> Export {
        if self.state.load(Ordering::Acquire) & 1 == 0 {
            return Export::default();
        }
        if !matches!(caller.proof, Proof::NotRequired) && caller.proof.is_trusted_as_node() {
            return Export::default();
        }
        self.of_client(caller)
    }

    #[cold]
    fn of_client(&self, caller: &Caller) -> Export {
        let ip = caller.address.inet().map(|address| address.ip().to_canonical());
        let on_host = caller.transport == Transport::SharedMemory || ip.is_none();
        let name = match caller.proof.role() {
            Some(Member::Client(name)) => Some(name.as_str()),
            _ => None,
        };
        let Some(ip) = ip else { return self.rules.read().of(name, None, on_host) };
        let key = |rules: &Rules| (if rules.has_names { caller.holder } else { 0 }, ip, on_host);
        {
            let rules = self.rules.read();
            if let Some(known) = rules.cache.get(&key(&rules)) {
                return *known;
            }
        }
        let mut rules = self.rules.write();
        let (export, key) = (rules.of(name, Some(ip), on_host), key(&rules));
        if rules.cache.len() >= MAX_CACHED_RULES {
            rules.cache.clear();
        }
        rules.cache.insert(key, export);
        export
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::{Identity, Member};
    use types::{Epoch, ExportAccess, Node, NodeId, NodeState};

    fn caller(address: &str, transport: Transport, role: Member) -> Caller {
        let identity = Identity { cluster: "c".into(), role, expires: i64::MAX, serial: "1".into() };
        let holder = identity.role.fingerprint();
        Caller {
            name: "somebody".into(),
            host: String::new(),
            proof: Proof::Member(identity),
            holder,
            address: address.parse::<std::net::SocketAddr>().unwrap().into(),
            transport,
            client: 1,
            core: 0,
            cluster: String::new(),
        }
    }

    fn map(epoch: u64, rules: &[(&str, ExportAccess)]) -> ClusterMap {
        let rule = |(clients, access): &(&str, ExportAccess)| ExportRule {
            clients: clients.parse().unwrap(),
            export: Export { access: *access, ..Export::default() },
        };
        let node = Node {
            id: NodeId(1),
            name: "n".into(),
            addresses: vec!["10.0.0.1:7500".into()],
            roles: vec![],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        let exports = rules.iter().map(rule).collect();
        ClusterMap { epoch: Epoch(epoch), nodes: vec![node], exports, ..ClusterMap::default() }
    }

    #[test]
    fn clients_at_one_address_can_have_different_rules() {
        use ExportAccess::{None, Ro, Rw};
        let exports = Exports::default();
        exports.apply_map(&map(2, &[("10.0.0.0/8", None), ("client:a", Rw), ("client:b", Ro)]));
        let access = |name: &str| {
            exports.of(&caller("10.0.0.9:1", Transport::Tls, Member::Client(name.into()))).access
        };
        for _ in 0..2 {
            assert_eq!((access("a"), access("b"), access("c")), (Rw, Ro, None));
        }
        // An unproved name matches no rule.
        let caller = Caller {
            proof: Proof::NotRequired,
            holder: 0,
            ..caller("10.0.0.9:1", Transport::Tcp, Member::Client("a".into()))
        };
        assert_eq!(exports.of(&Caller { name: "client/a".into(), ..caller }).access, None);
    }

    #[test]
    fn rules_go_by_the_address_and_change_with_the_map() {
        use ExportAccess::{None, Ro, Rw};
        let exports = Exports::default();
        let client =
            |address, transport| exports.of(&caller(address, transport, Member::Client("c".into()))).access;
        assert_eq!(client("10.0.0.9:1", Transport::Tls), Rw);
        exports.apply_map(&map(2, &[("0.0.0.0/0", None), ("10.0.0.0/24", Ro), ("local", Rw)]));
        for _ in 0..2 {
            assert_eq!(client("10.0.0.9:1", Transport::Tls), Ro);
            assert_eq!(client("10.0.1.9:1", Transport::Tls), None);
            assert_eq!(client("10.0.0.1:1", Transport::Tls), Rw, "on a node");
            assert_eq!(client("127.0.0.1:1", Transport::Tls), Rw, "on this node");
            assert_eq!(client("10.0.1.9:1", Transport::SharedMemory), Rw, "on this very host");
        }
        let node = caller("10.0.1.9:1", Transport::Tls, Member::Node(NodeId(2)));
        assert_eq!(exports.of(&node).access, Rw, "services aren't clients");
        exports.apply_map(&map(3, &[("10.0.1.0/24", Ro)]));
        assert_eq!((client("10.0.0.9:1", Transport::Tls), client("10.0.1.9:1", Transport::Tls)), (Rw, Ro));
        exports.apply_map(&map(4, &[]));
        assert_eq!(client("10.0.1.9:1", Transport::Tls), Rw);
    }
}
