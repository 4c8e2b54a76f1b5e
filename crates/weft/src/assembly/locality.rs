//! Networks of this machine: addresses in one of them are nearer than others.

use crate::node_config::resolve;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use types::{Node, Subnet};

/// Returns the current networks; empty if the kernel doesn't list them, and then no node is near.
pub fn local_networks() -> Vec<Subnet> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mut networks = networks_of_routes(&read("/proc/net/route"));
    networks.extend(networks_of_interfaces(&read("/proc/net/if_inet6")));
    networks.sort_unstable();
    networks.dedup();
    networks
}

/// Returns whether a node is on this machine: a socket can be bound to one of its addresses.
pub fn is_on_this_host(node: &Node) -> bool {
    let addresses = node.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
    addresses.map(|address| address.ip()).any(|ip| UdpSocket::bind((ip, 0)).is_ok())
}

/// Returns this machine's addresses if its node announces none of them: other processes reach the
/// node by address translation (NAT), or not at all. `None` if it announces one, or if that can't
/// be determined.
pub fn addresses_if_unannounced(announced: &[String]) -> Option<Vec<IpAddr>> {
    let own = rt::net::local_addresses().ok()?;
    let announced: Vec<IpAddr> = resolve(announced).ok()?.iter().map(SocketAddr::ip).collect();
    (!has_one_of(&own, &announced)).then_some(own)
}

fn has_one_of(own: &[IpAddr], announced: &[IpAddr]) -> bool {
    let canonical: Vec<IpAddr> = own.iter().map(IpAddr::to_canonical).collect();
    announced.iter().map(IpAddr::to_canonical).any(|ip| ip.is_loopback() || canonical.contains(&ip))
}

/// Returns the IPv4 networks: destinations of routes without a gateway. Numbers are hexadecimal;
/// the bytes of addresses are in memory order.
fn networks_of_routes(routes: &str) -> Vec<Subnet> {
    let network = |line: &str| -> Option<Subnet> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = |index: usize| -> Option<Ipv4Addr> {
            let bytes = u32::from_str_radix(fields.get(index)?, 16).ok()?.to_ne_bytes();
            Some(Ipv4Addr::from(bytes))
        };
        let (first, gateway, mask) = (address(1)?, address(2)?, address(7)?.to_bits());
        let is_direct = gateway.is_unspecified() && mask != 0;
        is_direct.then(|| format!("{first}/{}", mask.leading_ones()).parse().ok()).flatten()
    };
    routes.lines().skip(1).filter_map(network).collect()
}

/// Returns the IPv6 networks, from the addresses of interfaces. Ignores link-local and loopback
/// addresses, which every machine has.
fn networks_of_interfaces(interfaces: &str) -> Vec<Subnet> {
    let network = |line: &str| -> Option<Subnet> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let own = Ipv6Addr::from_bits(u128::from_str_radix(fields.first()?, 16).ok()?);
        let bits = u32::from_str_radix(fields.get(2)?, 16).ok()?;
        let mask = u128::MAX.checked_shl(128_u32.checked_sub(bits)?).unwrap_or(0);
        let is_usable = mask != 0 && !own.is_loopback() && !own.is_unicast_link_local();
        let first = Ipv6Addr::from_bits(own.to_bits() & mask);
        is_usable.then(|| format!("{first}/{bits}").parse().ok()).flatten()
    };
    interfaces.lines().filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(networks: Vec<Subnet>) -> Vec<String> {
        networks.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn destinations_without_a_gateway_are_local() {
        // 192.0.2.0/24 and 10.0.0.0/8 are near; destinations behind 192.0.2.1 aren't.
        let hex = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |to, gateway, mask| {
            format!("eth0\t{}\t{}\t0001\t0\t0\t0\t{}\t0\t0\t0\n", hex(to), hex(gateway), hex(mask))
        };
        let routes = [
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
                .to_string(),
            line([0; 4], [192, 0, 2, 1], [0; 4]),
            line([192, 0, 2, 0], [0; 4], [255, 255, 255, 0]),
            line([10, 0, 0, 0], [0; 4], [255, 0, 0, 0]),
            line([172, 16, 0, 0], [192, 0, 2, 1], [255, 255, 0, 0]),
            "something else\n".to_string(),
        ];
        assert_eq!(texts(networks_of_routes(&routes.concat())), ["192.0.2.0/24", "10.0.0.0/8"]);
    }

    #[test]
    fn a_node_is_here_if_one_of_its_addresses_is() {
        let node = |addresses: &[&str]| Node {
            id: types::NodeId(1),
            name: "n".into(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            roles: Vec::new(),
            state: types::NodeState::Online,
            version: String::new(),
            rack: None,
        };
        assert!(is_on_this_host(&node(&["192.0.2.7:7500", "127.0.0.1:7500"])));
        // No machine has an address that is reserved for documentation.
        assert!(!is_on_this_host(&node(&["192.0.2.7:7500", "name:7500"])));
    }

    #[test]
    fn an_announced_address_is_compared_with_those_of_the_machine() {
        let ips =
            |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let own = ips(&["10.0.0.2", "fd00::2"]);
        assert!(has_one_of(&own, &ips(&["192.0.2.7", "10.0.0.2"])));
        assert!(has_one_of(&own, &ips(&["fd00::2"])) && has_one_of(&own, &ips(&["::ffff:10.0.0.2"])));
        assert!(has_one_of(&own, &ips(&["127.0.0.1"])), "a cluster on one machine");
        assert!(!has_one_of(&own, &ips(&["192.0.2.7", "fd00::3"])));
        // No machine has an address that is reserved for documentation.
        assert!(addresses_if_unannounced(&["192.0.2.7:7500".into()]).is_some());
        assert!(addresses_if_unannounced(&["192.0.2.7:7500".into(), "127.0.0.1:7500".into()]).is_none());
    }

    #[test]
    fn link_local_and_loopback_networks_are_ignored() {
        let interfaces = "fd000000000000010000000000000002 04 40 00 82     eth0\n\
            00000000000000000000000000000001 01 80 10 80       lo\n\
            fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\
            what is this\n";
        assert_eq!(texts(networks_of_interfaces(interfaces)), ["fd00:0:0:1::/64"]);
    }
}
