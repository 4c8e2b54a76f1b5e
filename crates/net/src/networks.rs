//! Selection and order of a peer's addresses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use types::{Error, Subnet};

/// The networks that connections may use, best first. Networks in one entry,
/// `10.1.0.0/16,10.2.0.0/16`, are equally good. Empty: all may be used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Networks {
    preferences: Vec<Vec<Subnet>>,
    /// The entries as they were written.
    text: Vec<String>,
}

/// The addresses of a peer in order of preference, and those that may not be used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RankedAddresses {
    /// Each with its rank; addresses of the same rank are equally good.
    pub(crate) usable: Vec<(usize, SocketAddr)>,
    pub(crate) unused: Vec<SocketAddr>,
}

impl Networks {
    /// Parses one text for each preference.
    ///
    /// # Errors
    /// `EINVAL` for a text that isn't a network.
    pub fn parse(texts: &[String]) -> Result<Networks, Error> {
        let subnets = |text: &String| text.split(',').map(str::parse).collect::<Result<Vec<Subnet>, Error>>();
        let preferences = texts.iter().map(subnets).collect::<Result<Vec<_>, Error>>()?;
        Ok(Networks { preferences, text: texts.to_vec() })
    }

    /// Whether all addresses may be used.
    pub fn is_empty(&self) -> bool {
        self.preferences.is_empty()
    }

    /// Rank of an address, 0 is best; `None` if it may not be used.
    pub fn rank(&self, ip: IpAddr) -> Option<usize> {
        if self.is_empty() {
            return Some(0);
        }
        self.preferences.iter().position(|subnets| subnets.iter().any(|subnet| subnet.contains(ip)))
    }

    /// Orders a peer's addresses, given in the peer's order of preference. That order decides if no
    /// networks are configured. Otherwise addresses that match the same entry are equally good.
    pub(crate) fn rank_addresses(&self, addresses: &[SocketAddr]) -> RankedAddresses {
        let mut ranked = RankedAddresses::default();
        for (index, address) in addresses.iter().enumerate() {
            match self.rank(address.ip()) {
                Some(rank) => ranked.usable.push((if self.is_empty() { index } else { rank }, *address)),
                None => ranked.unused.push(*address),
            }
        }
        ranked.usable.sort_by_key(|(rank, _)| *rank);
        ranked
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text.join(", "))
    }
}

impl RankedAddresses {
    /// The order in which a link tries them. Addresses that failed recently come last. Among
    /// equally good ones each link starts with another, so that the links of a peer spread over
    /// them.
    pub(crate) fn order(
        &self,
        link: usize,
        failed_recently: impl Fn(&SocketAddr) -> bool,
    ) -> Vec<(usize, SocketAddr)> {
        let mut all = Vec::with_capacity(self.usable.len());
        for equals in self.usable.chunk_by(|a, b| a.0 == b.0) {
            let (before, from) = equals.split_at(link % equals.len());
            all.extend(from.iter().chain(before));
        }
        all.sort_by_key(|(_, address)| failed_recently(address));
        all
    }

    /// Rank of an address; `None` for one that isn't usable.
    pub(crate) fn rank(&self, address: SocketAddr) -> Option<usize> {
        self.usable.iter().find(|(_, known)| *known == address).map(|(rank, _)| *rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Errno;

    fn networks(texts: &[&str]) -> Networks {
        Networks::parse(&texts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| format!("{text}:7500").parse().unwrap()).collect()
    }

    fn order(ways: &RankedAddresses, link: usize, failed: &[SocketAddr]) -> Vec<SocketAddr> {
        ways.order(link, |address| failed.contains(address)).into_iter().map(|(_, address)| address).collect()
    }

    #[test]
    fn without_networks_the_peer_decides() {
        let all = addresses(&["10.0.0.1", "192.168.0.1", "[fd00::1]"]);
        let ways = Networks::default().rank_addresses(&all);
        assert_eq!(order(&ways, 0, &[]), all);
        assert_eq!(order(&ways, 1, &[]), all, "its order is one of preference, not of equals");
        assert_eq!(order(&ways, 0, &all[..1]), [all[1], all[2], all[0]]);
        assert_eq!(ways.unused, []);
    }

    #[test]
    fn networks_choose_and_order() {
        let all = addresses(&["192.168.0.1", "10.1.0.1", "172.16.0.1", "10.2.0.1", "[fd00::1]"]);
        let ways = networks(&["10.1.0.0/16,10.2.0.0/16", "fd00::/8", "192.168.0.0/24"]).rank_addresses(&all);
        assert_eq!(ways.unused, [all[2]]);
        assert_eq!(order(&ways, 0, &[]), [all[1], all[3], all[4], all[0]]);
        assert_eq!(order(&ways, 1, &[]), [all[3], all[1], all[4], all[0]], "the next link spreads");
        assert_eq!(order(&ways, 1, &[all[3], all[1]]), [all[4], all[0], all[3], all[1]]);
        assert_eq!((ways.rank(all[3]), ways.rank(all[0]), ways.rank(all[2])), (Some(0), Some(2), None));
    }

    #[test]
    fn prefixes_end_where_they_say() {
        let some = networks(&["10.128.0.0/9", "fe80::/10", "1.2.3.4/32"]);
        let rank = |ip: &str| some.rank(ip.parse().unwrap());
        assert_eq!(
            (rank("10.128.0.0"), rank("10.255.255.255"), rank("10.127.255.255")),
            (Some(0), Some(0), None)
        );
        assert_eq!((rank("fe80::1"), rank("febf::1"), rank("fec0::1")), (Some(1), Some(1), None));
        assert_eq!((rank("1.2.3.4"), rank("1.2.3.5"), rank("::1.2.3.4")), (Some(2), None, None));
        assert_eq!(networks(&["0.0.0.0/0"]).rank("9.9.9.9".parse().unwrap()), Some(0));
        assert_eq!(
            networks(&["0.0.0.0/0"]).rank("::1".parse().unwrap()),
            None,
            "all of IPv4 isn't all of IPv6"
        );
        assert_eq!(networks(&["::/0"]).rank("::1".parse().unwrap()), Some(0));
    }

    #[test]
    fn an_invalid_network_is_refused_with_its_text() {
        for wrong in
            ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.1/8", "ten/8", "fd00::/129", "10.0.0.0/8,", "10.0.0.0/-1"]
        {
            let error = Networks::parse(&[wrong.to_string()]).unwrap_err();
            assert!(
                error.errno == Errno::EINVAL && error.message.contains("is not a network"),
                "{wrong}: {error}"
            );
        }
    }
}
