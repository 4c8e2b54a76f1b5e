//! Interfaces, and connections to management.

use crate::{Interface, ManagementContact};
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// Time for one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Type of loopback in sysfs (`ARPHRD_LOOPBACK`).
const LOOPBACK: &str = "772";

pub(super) fn interfaces() -> Vec<Interface> {
    let Ok(entries) = fs::read_dir("/sys/class/net") else { return Vec::new() };
    let mut found: Vec<Interface> = entries.flatten().filter_map(|entry| interface(&entry.path())).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn interface(dir: &Path) -> Option<Interface> {
    let value = |name: &str| fs::read_to_string(dir.join(name)).ok().map(|text| text.trim().to_string());
    if value("type").as_deref() == Some(LOOPBACK) {
        return None;
    }
    Some(Interface {
        name: dir.file_name()?.to_string_lossy().into_owned(),
        is_up: value("carrier").as_deref() == Some("1"),
        // -1, or an error, for links without one.
        mbit_per_s: value("speed").and_then(|text| text.parse().ok()),
        mtu: value("mtu")?.parse().ok()?,
    })
}

/// Connects to an address of management, and closes the connection.
pub(super) fn contact(address: &str) -> ManagementContact {
    let failure = connect(address).err();
    ManagementContact { address: address.to_string(), failure }
}

fn connect(address: &str) -> Result<(), String> {
    let found = address.to_socket_addrs().map_err(|_| "its name can't be resolved".to_string())?;
    let mut last = "its name has no address".to_string();
    for address in found {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(e) => last = e.to_string().split(" (os error").next().unwrap_or_default().to_lowercase(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_reachable_until_it_ends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(contact(&address).failure, None);
        drop(listener);
        assert!(contact(&address).failure.unwrap().contains("refused"));
        assert!(contact("no-such-host.invalid:1").failure.unwrap().contains("resolved"));
    }

    #[test]
    fn loopback_is_left_out() {
        assert!(interfaces().iter().all(|interface| interface.name != "lo"));
    }
}
