//! Who listens on a port.

use crate::{Port, PortUse};
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Number of the state LISTEN in `/proc/net/tcp`.
const LISTEN: &str = "0A";

pub(super) fn port(address: SocketAddr) -> Port {
    let used = match TcpListener::bind(address) {
        Ok(_) => PortUse::Free,
        Err(e) if e.kind() == ErrorKind::AddrInUse => match listener(address) {
            Some((name, _)) if name == "weft" => PortUse::ByWeft,
            program => PortUse::By(program),
        },
        Err(e) => {
            PortUse::Unusable(e.to_string().split(" (os error").next().unwrap_or_default().to_lowercase())
        }
    };
    Port { address, used }
}

/// Returns name and process id of the program that listens where the address can't be used. Root
/// sees the programs of all users.
fn listener(address: SocketAddr) -> Option<(String, u32)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
    let inodes: Vec<u64> = tables.iter().flat_map(|table| listening_inodes(table, address)).collect();
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        let holds =
            |link: &std::path::PathBuf| links.iter().any(|socket| link.as_os_str() == socket.as_str());
        if open.flatten().filter_map(|fd| fs::read_link(fd.path()).ok()).any(|link| holds(&link)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((name.trim().to_string(), pid));
        }
    }
    None
}

/// Returns the inodes of sockets that listen on the port, on an address that conflicts with the
/// given one. Lines of the table are: number, local address, remote address, state, queues, timer,
/// retransmits, uid, timeout, inode (proc(5)).
fn listening_inodes(table: &str, address: SocketAddr) -> Vec<u64> {
    let inode = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (parse_local(fields.next()?)?, fields.nth(1)?);
        let conflicts = local.port() == address.port()
            && (local.ip() == address.ip() || local.ip().is_unspecified() || address.ip().is_unspecified());
        (state == LISTEN && conflicts).then(|| fields.nth(5)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// Parses `0100007F:1D4C`: words in the machine's order, then the port.
fn parse_local(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_on_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let PortUse::By(Some((_, pid))) = port(address).used else { panic!("{:?}", port(address)) };
        assert_eq!(pid, std::process::id());
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert!(matches!(port(any).used, PortUse::By(Some(_))));
        drop(listener);
        assert_eq!(port(address).used, PortUse::Free);
    }

    #[test]
    fn foreign_addresses_are_unusable() {
        assert!(matches!(port("192.0.2.1:7500".parse().unwrap()).used, PortUse::Unusable(_)));
    }
}
