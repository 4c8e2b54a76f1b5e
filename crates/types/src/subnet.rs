//! Subnets of IPv4 and IPv6.

use crate::{Errno, Error};
use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;

/// A subnet: `10.1.0.0/16`, `fd00::/8`. An IPv4 address is only in IPv4 subnets, also in its
/// IPv4-mapped form (`::ffff:10.1.0.1`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Subnet {
    /// The bits after the prefix are zero.
    first: IpAddr,
    bits: u8,
}

/// The bits of an address, most significant first, and their number.
fn bits_of(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl Subnet {
    /// The subnet of this address alone.
    pub fn of(ip: IpAddr) -> Subnet {
        let first = ip.to_canonical();
        Subnet { first, bits: bits_of(first).1 }
    }

    /// Length of the prefix.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address is in the subnet.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.first.is_ipv4() && bits_of(ip).0 & mask(self.bits) == bits_of(self.first).0
    }
}

impl FromStr for Subnet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Subnet, Error> {
        let wrong = |why: &str| {
            let message = format!("{text:?} is not a network: {why}");
            Error::new(Errno::EINVAL, message).hint("write ADDRESS/BITS, for example 10.1.0.0/16 or fd00::/8")
        };
        let (ip, bits) = text.trim().split_once('/').ok_or_else(|| wrong("it has no /BITS"))?;
        let first: IpAddr = ip.parse().map_err(|_| wrong("that is not an address"))?;
        let bits: u8 = bits.parse().map_err(|_| wrong("BITS is not a prefix length"))?;
        let (value, most) = bits_of(first);
        if bits > most {
            return Err(wrong(&format!("its addresses have {most} bits")));
        }
        match value & mask(bits) == value {
            true => Ok(Subnet { first, bits }),
            false => Err(wrong("its address has bits beyond the prefix")),
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_round_trip_as_text() {
        for text in ["10.1.0.0/16", "0.0.0.0/0", "::/0", "fd00::/8", "1.2.3.4/32", "fe80::1/128"] {
            assert_eq!(text.parse::<Subnet>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn ipv4_and_ipv6_are_kept_apart() {
        let holds = |net: &str, ip: &str| net.parse::<Subnet>().unwrap().contains(ip.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.9.8.7") && holds("10.0.0.0/8", "::ffff:10.9.8.7"));
        assert!(!holds("::/0", "10.9.8.7") && !holds("::/0", "::ffff:10.9.8.7") && holds("::/0", "fd00::1"));
        assert!(!holds("0.0.0.0/0", "fd00::1") && !holds("0.0.0.0/0", "::1"));
        assert!(Subnet::of("::ffff:10.9.8.7".parse().unwrap()).contains("10.9.8.7".parse().unwrap()));
    }
}
