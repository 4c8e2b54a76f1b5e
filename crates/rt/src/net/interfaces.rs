//! The addresses of this machine.

use super::address::RawAddress;
use super::check;
use std::io;
use std::net::IpAddr;

/// The addresses of this machine's network interfaces that are up, in the kernel's order. Loopback
/// and link-local addresses are left out: other machines can't use them.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is to a place for the list's head.
    check(unsafe { libc::getifaddrs(&raw mut first) })?;
    let list = List(first);
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: the list's entries are valid until it is freed, when `list` is dropped; its end is
    // null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
        // SAFETY: the address is null or valid like its entry.
        let address = unsafe { RawAddress::copy_of(entry.ifa_addr) };
        let ip = address
            .and_then(|raw| raw.decode().ok())
            .and_then(|address| address.inet())
            .map(|inet| inet.ip());
        found.extend(ip.filter(|ip| up && is_reachable_by_others(ip) && !found.contains(ip)));
    }
    Ok(found)
}

fn is_reachable_by_others(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

/// The kernel's list, freed when dropped.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from getifaddrs and is freed once.
        unsafe { libc::freeifaddrs(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_addresses_can_be_bound_and_are_not_loopback() {
        for ip in local_addresses().unwrap() {
            assert!(!ip.is_loopback());
            std::net::UdpSocket::bind((ip, 0)).unwrap_or_else(|e| panic!("{ip}: {e}"));
        }
    }
}
