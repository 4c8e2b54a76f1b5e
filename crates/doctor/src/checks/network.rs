//! Ports, interfaces, and management.

use crate::{Code, Finding, Interface, ManagementContact, Port, PortUse};

/// Speed below which the network limits any disk.
const SLOW_MBIT_PER_S: u32 = 1000;
/// Speed from which large packets are worth it.
const FAST_MBIT_PER_S: u32 = 25_000;
/// Size of packets from which they count as large.
const LARGE_MTU: u32 = 4000;

pub(super) fn port(port: &Port) -> Finding {
    let address = port.address;
    let other = "stop that program, or choose another port: `listen` in node.toml, --listen of weft cluster init and weft node join";
    match &port.used {
        PortUse::Free => Finding::good("port", format!("{address} is free")),
        PortUse::ByWeft => Finding::good("port", format!("{address} is served by weft")),
        PortUse::By(Some((name, pid))) => {
            Finding::error(Code::PortInUse, format!("{address} is in use by {name} (process {pid})"), other)
        }
        PortUse::By(None) => {
            let hint = format!("ss -ltnp 'sport = :{}' shows the program (as root); {other}", address.port());
            Finding::error(Code::PortInUse, format!("{address} is in use by another program"), hint)
        }
        PortUse::Unusable(cause) => {
            let hint = "ip address lists the addresses of this machine; 0.0.0.0 stands for all";
            Finding::error(Code::PortUnusable, format!("{address} can't be listened on: {cause}"), hint)
        }
    }
}

pub(super) fn interfaces(interfaces: &[Interface]) -> Vec<Finding> {
    let up: Vec<&Interface> = interfaces.iter().filter(|interface| interface.is_up).collect();
    if up.is_empty() && !interfaces.is_empty() {
        let what = "no network interface besides loopback is up: other machines can't reach this one";
        return vec![Finding::warning(Code::InterfaceDown, what, "ip link show; ip link set dev NAME up")];
    }
    up.into_iter().map(interface).collect()
}

fn interface(interface: &Interface) -> Finding {
    let Interface { name, mbit_per_s, mtu, .. } = interface;
    let speed = mbit_per_s.map_or_else(|| "speed unknown".into(), |speed| format!("{speed} Mbit/s"));
    let what = format!("{name}: {speed}, MTU {mtu}");
    match *mbit_per_s {
        Some(speed) if speed < SLOW_MBIT_PER_S => {
            let what = format!("{what}: slower than one disk");
            let hint = format!("ethtool {name} shows the modes of the link; check cable and switch");
            Finding::warning(Code::InterfaceSlow, what, hint)
        }
        Some(speed) if speed >= FAST_MBIT_PER_S && *mtu < LARGE_MTU => {
            // Advice only: many networks, those of clouds among them, have no larger packets.
            Finding::good("interface", format!("{what}; larger packets would save processor time"))
        }
        _ => Finding::good("interface", what),
    }
}

pub(super) fn management(contact: &ManagementContact) -> Finding {
    let address = &contact.address;
    match &contact.failure {
        None => Finding::good("management", format!("management at {address} accepts connections")),
        Some(cause) => {
            let hint = format!(
                "check that the management node runs and that no firewall is in between: nc -vz {}",
                address.rsplit_once(':').map_or(address.clone(), |(host, port)| format!("{host} {port}"))
            );
            Finding::error(
                Code::ManagementUnreachable,
                format!("management at {address} can't be reached: {cause}"),
                hint,
            )
        }
    }
}
