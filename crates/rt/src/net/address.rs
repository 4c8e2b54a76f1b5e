//! Socket addresses.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Address of a socket: a network address and port, or a path or name on this machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// TCP.
    Inet(SocketAddr),
    /// A Unix stream socket. The path of an unbound one is empty.
    Unix(PathBuf),
    /// A Unix stream socket with an abstract name instead of a path: visible within one network
    /// namespace, and gone with the process.
    Abstract(String),
}

impl Address {
    /// The network address, if it is one.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Address::Inet(address) => Some(*address),
            Address::Unix(_) | Address::Abstract(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Inet(address)
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Address {
        Address::Unix(path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.fmt(f),
            Address::Unix(path) if path.as_os_str().is_empty() => f.write_str("unix"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Abstract(name) => write!(f, "unix:@{name}"),
        }
    }
}

/// An address in the format of system calls.
pub(super) struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    /// An all-zero address with space for any kind.
    pub(super) fn empty() -> RawAddress {
        // SAFETY: an all-zero sockaddr_storage is valid.
        let storage = unsafe { std::mem::zeroed() };
        RawAddress { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub(super) fn new(address: &Address) -> io::Result<RawAddress> {
        match address {
            Address::Inet(SocketAddr::V4(v4)) => Ok(RawAddress::filled_with(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            })),
            Address::Inet(SocketAddr::V6(v6)) => Ok(RawAddress::filled_with(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            })),
            Address::Unix(path) => RawAddress::of_path(path.as_os_str().as_bytes()),
            Address::Abstract(name) => RawAddress::of_name(name.as_bytes()),
        }
    }

    /// A copy of a system address; `None` for a null pointer, and for an address that is neither
    /// IPv4 nor IPv6.
    ///
    /// # Safety
    /// `address` is null or points to an address whose size its family determines.
    pub(super) unsafe fn copy_of(address: *const libc::sockaddr) -> Option<RawAddress> {
        // SAFETY: the caller vouches for the pointer unless it is null.
        let family = libc::c_int::from(unsafe { address.as_ref() }?.sa_family);
        match family {
            libc::AF_INET => {
                // SAFETY: the family says what the pointer points to.
                let raw = unsafe { address.cast::<libc::sockaddr_in>().read() };
                Some(RawAddress::filled_with(raw))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let raw = unsafe { address.cast::<libc::sockaddr_in6>().read() };
                Some(RawAddress::filled_with(raw))
            }
            _ => None,
        }
    }

    fn of_path(path: &[u8]) -> io::Result<RawAddress> {
        let mut raw =
            libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
        if path.is_empty() || path.len() >= raw.sun_path.len() || path.contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in raw.sun_path.iter_mut().zip(path) {
            *to = *from as libc::c_char;
        }
        Ok(RawAddress::filled_with(raw))
    }

    fn of_name(name: &[u8]) -> io::Result<RawAddress> {
        let mut raw =
            libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
        if name.is_empty() || name.len() >= raw.sun_path.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in raw.sun_path[1..].iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let mut address = RawAddress::filled_with(raw);
        // The length delimits an abstract name.
        address.len = (offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t;
        Ok(address)
    }

    fn filled_with<T: Copy>(raw: T) -> RawAddress {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        let mut address = RawAddress::empty();
        // SAFETY: the storage is large enough and aligned for every kind of address.
        unsafe { (&raw mut address.storage).cast::<T>().write(raw) };
        address.len = size_of::<T>() as libc::socklen_t;
        address
    }

    pub(super) fn family(&self) -> libc::c_int {
        self.storage.ss_family.into()
    }

    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        self.len
    }

    /// Where a system call writes an address and its length.
    pub(super) fn as_out(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    pub(super) fn decode(&self) -> io::Result<Address> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family says what the storage holds.
                let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
                Ok(Address::Inet(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into()))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let port = u16::from_be(raw.sin6_port);
                Ok(Address::Inet(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into()))
            }
            libc::AF_UNIX => Ok(self.decode_unix()),
            _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        }
    }

    fn decode_unix(&self) -> Address {
        // SAFETY: the family says what the storage holds; what the kernel didn't fill is zero.
        let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_un>().read() };
        let filled = (self.len as usize).saturating_sub(offset_of!(libc::sockaddr_un, sun_path));
        let bytes: Vec<u8> = raw.sun_path.iter().take(filled).map(|c| *c as u8).collect();
        match bytes.split_first() {
            Some((0, name)) if !name.is_empty() => {
                Address::Abstract(String::from_utf8_lossy(name).into_owned())
            }
            _ => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                Address::Unix(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip_through_the_kernel_format() {
        for text in ["192.0.2.7:443", "[2001:db8::1]:1", "[fe80::1%3]:65535"] {
            let address = Address::Inet(text.parse().unwrap());
            assert_eq!(RawAddress::new(&address).unwrap().decode().unwrap(), address);
        }
        let path = Address::Unix("/tmp/some socket".into());
        assert_eq!(RawAddress::new(&path).unwrap().decode().unwrap(), path);
        let name = Address::Abstract("weft-1".into());
        assert_eq!(RawAddress::new(&name).unwrap().decode().unwrap(), name);
        assert!(RawAddress::new(&Address::Abstract("x".repeat(108))).is_err());
    }

    #[test]
    fn paths_that_the_kernel_cannot_take_are_refused() {
        for path in ["", "a\0b", &"x".repeat(108)] {
            assert!(RawAddress::new(&Address::Unix(path.into())).is_err(), "{path:?}");
        }
        assert!(RawAddress::new(&Address::Unix("x".repeat(107).into())).is_ok());
    }
}
