//! Addresses of management, from a file that the administrator writes and from the cluster map.
//!
//! The process reads the file and resolves names before each attempt to connect, so a change of
//! either is enough to find management at another address. Addresses from the map are written to
//! the file, so that a restart doesn't depend on the old address.

use crate::node_config::{read_management_addresses, resolve, write_management_addresses};
use mgmt::StatePaths;
use mgmt::limits::MAX_ADDRESSES;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use types::{ClusterMap, Result, Role};

/// The addresses of management that this process knows.
pub struct ManagementAddresses {
    file: Option<AddressFile>,
    known: Mutex<KnownAddresses>,
    /// Locked while the file is written.
    writing: Mutex<()>,
}

/// `node.toml`, or the cluster file of a client.
struct AddressFile {
    path: PathBuf,
    /// Cluster that the file must belong to.
    cluster: String,
}

#[derive(Default)]
struct KnownAddresses {
    /// As an administrator wrote it.
    configured: Vec<String>,
    /// From the cluster map; empty until there is one.
    mapped: Vec<String>,
    /// Addresses of each name, as last resolved.
    resolved: BTreeMap<String, Vec<SocketAddr>>,
}

impl ManagementAddresses {
    /// Creates it with these addresses and without a file; the map adds others.
    pub fn fixed(addresses: &[String]) -> Arc<ManagementAddresses> {
        ManagementAddresses::new(None, addresses)
    }

    /// Creates it with a file, which is read again for each attempt, and the addresses of its first
    /// reading.
    pub fn from_file(path: PathBuf, cluster: &str, addresses: &[String]) -> Arc<ManagementAddresses> {
        ManagementAddresses::new(Some(AddressFile { path, cluster: cluster.into() }), addresses)
    }

    fn new(file: Option<AddressFile>, addresses: &[String]) -> Arc<ManagementAddresses> {
        let known = KnownAddresses { configured: addresses.to_vec(), ..KnownAddresses::default() };
        Arc::new(ManagementAddresses { file, known: Mutex::new(known), writing: Mutex::new(()) })
    }

    fn known(&self) -> MutexGuard<'_, KnownAddresses> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the addresses to try, best first. May block: it reads the file and resolves names.
    ///
    /// # Errors
    /// No address is known, or none of the names can be resolved.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        self.resolve_by(|name| resolve(&[name.to_string()]))
    }

    fn resolve_by(&self, look_up: impl Fn(&str) -> Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
        let now = self.file.as_ref().and_then(|file| read_management_addresses(&file.path, &file.cluster));
        let names = {
            let mut known = self.known();
            // If the file can't be read now, for example while it is replaced, the known addresses
            // stay.
            if let Some(now) = now {
                known.configured = now;
            }
            merge_addresses(&known.configured, &known.mapped)
        };
        let (mut found, mut failure) = (Vec::new(), None);
        let looked_up: Vec<Result<Vec<SocketAddr>>> = names.iter().map(|name| look_up(name)).collect();
        let mut known = self.known();
        known.resolved.retain(|name, _| names.contains(name));
        for (name, addresses) in names.iter().zip(looked_up) {
            match addresses {
                Ok(addresses) => _ = known.resolved.insert(name.clone(), addresses),
                // They also stay if the name server doesn't answer: connections to known addresses
                // still work.
                Err(error) => failure = Some(error),
            }
            let addresses = known.resolved.get(name).map_or(&[][..], Vec::as_slice);
            for address in addresses {
                if !found.contains(address) {
                    found.push(*address);
                }
            }
        }
        match failure {
            Some(error) if found.is_empty() => Err(error),
            None if found.is_empty() => resolve(&[]),
            _ => Ok(found),
        }
    }

    /// Updates the addresses from a map. New ones are written to the file on a separate thread: a
    /// slow disk must not delay the use of the map.
    pub fn follow(self: &Arc<Self>, map: &ClusterMap) {
        let Some(management) = map.nodes.iter().find(|node| node.roles.contains(&Role::Mgmt)) else { return };
        {
            let mut known = self.known();
            if known.mapped == management.addresses {
                return;
            }
            known.mapped = management.addresses.clone();
        }
        if self.file.is_none() {
            return;
        }
        let management_addresses = self.clone();
        let work = move || management_addresses.save();
        if let Err(error) = std::thread::Builder::new().name("weft-places".into()).spawn(work) {
            tracing::warn!(%error, "the addresses of management could not be saved: no thread");
        }
    }

    /// Adds missing addresses to the file.
    fn save(&self) {
        let Some(AddressFile { path, cluster }) = &self.file else { return };
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = self.known().mapped.clone();
        if let Some(saved) = add_to_file(path, cluster, &mapped) {
            self.known().configured = saved;
        }
    }
}

/// Adds missing addresses to a file, before former ones. Returns what the file has now; `None` if
/// nothing was written.
fn add_to_file(path: &Path, cluster: &str, mapped: &[String]) -> Option<Vec<String>> {
    let configured = read_management_addresses(path, cluster)?;
    let wanted = merge_addresses(&configured, mapped);
    if wanted == configured {
        return None;
    }
    let shown = path.display();
    match write_management_addresses(path, cluster, &wanted) {
        Ok(()) => {
            tracing::info!(?wanted, "management has new addresses, which were saved in {shown}");
            Some(wanted)
        }
        Err(error) => {
            let hint = format!("write management = {wanted:?} into {shown} yourself");
            tracing::warn!(
                hint,
                "management has new addresses, which could not be saved in {shown}: {error}"
            );
            None
        }
    }
}

/// Adds the addresses of this management to the cluster file in its directory, with which new
/// clients mount. An administrator may have removed that file.
pub fn update_cluster_file(paths: &StatePaths, cluster: &str, addresses: &[String]) {
    add_to_file(&paths.cluster_file(), cluster, addresses);
}

/// Merges both lists, best first: configured entries that are names or in the map, then the rest of
/// the map, then the other configured entries. The last may be former addresses, or addresses that
/// only this machine uses.
fn merge_addresses(configured: &[String], mapped: &[String]) -> Vec<String> {
    if mapped.is_empty() {
        return configured.to_vec();
    }
    let is_name = |text: &String| text.parse::<SocketAddr>().is_err();
    let first = configured.iter().filter(|text| is_name(text) || mapped.contains(text));
    let mut all: Vec<String> = Vec::new();
    for text in first.chain(mapped).chain(configured) {
        if !all.contains(text) {
            all.push(text.clone());
        }
    }
    all.truncate(MAX_ADDRESSES);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Errno, Node, NodeId, NodeState};

    fn texts(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    fn map(addresses: &[&str]) -> ClusterMap {
        let node = Node {
            id: NodeId(1),
            name: "m".into(),
            addresses: texts(addresses),
            roles: vec![Role::Mgmt],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        ClusterMap { nodes: vec![node], ..ClusterMap::default() }
    }

    #[test]
    fn addresses_of_the_map_precede_old_ones_and_names_stay() {
        let check = |configured: &[&str], mapped: &[&str], all: &[&str]| {
            assert_eq!(merge_addresses(&texts(configured), &texts(mapped)), texts(all));
        };
        check(&["10.0.0.1:7500"], &[], &["10.0.0.1:7500"]);
        check(&["10.0.0.1:7500"], &["10.0.0.1:7500"], &["10.0.0.1:7500"]);
        check(&["10.0.0.1:7500"], &["10.0.0.9:7500"], &["10.0.0.9:7500", "10.0.0.1:7500"]);
        check(
            &["10.0.0.1:7500", "mgmt:7500", "10.0.0.9:7500"],
            &["10.0.0.9:7500", "10.1.0.9:7500"],
            &["mgmt:7500", "10.0.0.9:7500", "10.1.0.9:7500", "10.0.0.1:7500"],
        );
        let many: Vec<String> = (0..40).map(|port| format!("10.0.0.1:{}", 7500 + port)).collect();
        let all = merge_addresses(&many, &texts(&["10.0.0.9:7500"]));
        assert_eq!((all.len(), &*all[0]), (MAX_ADDRESSES, "10.0.0.9:7500"));
    }

    #[test]
    fn the_file_and_the_map_are_asked_each_time() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("node.toml");
        let write = |address: &str| {
            std::fs::write(&path, format!("# mine\ncluster = \"c\"\nmanagement = [{address:?}]\n")).unwrap();
        };
        write("127.0.0.1:7500");
        let management_addresses =
            ManagementAddresses::from_file(path.clone(), "c", &texts(&["127.0.0.1:7500"]));
        let addresses = |management_addresses: &ManagementAddresses| -> Vec<String> {
            management_addresses.resolve().unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(addresses(&management_addresses), ["127.0.0.1:7500"]);
        write("127.0.0.2:7500");
        assert_eq!(
            addresses(&management_addresses),
            ["127.0.0.2:7500"],
            "an administrator has written another one"
        );
        management_addresses.follow(&map(&["127.0.0.3:7500"]));
        assert_eq!(addresses(&management_addresses), ["127.0.0.3:7500", "127.0.0.2:7500"]);
        management_addresses.save();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# mine\ncluster"), "{text}");
        // A process that starts now reads the new address from the file.
        let later = ManagementAddresses::from_file(
            path.clone(),
            "c",
            &read_management_addresses(&path, "c").unwrap(),
        );
        assert_eq!(addresses(&later), ["127.0.0.3:7500", "127.0.0.2:7500"]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            addresses(&management_addresses),
            ["127.0.0.3:7500", "127.0.0.2:7500"],
            "what was known stays"
        );
    }

    #[test]
    fn what_a_map_says_is_written_into_the_file() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("node.toml");
        std::fs::write(&path, "cluster = \"c\"\nmanagement = [\"127.0.0.1:7500\"]\n").unwrap();
        let management_addresses =
            ManagementAddresses::from_file(path.clone(), "c", &texts(&["127.0.0.1:7500"]));
        management_addresses.follow(&map(&["127.0.0.3:7500"]));
        let began_ns = rt::monotonic_ns();
        // A separate thread writes the file.
        while read_management_addresses(&path, "c") != Some(texts(&["127.0.0.3:7500", "127.0.0.1:7500"])) {
            assert!(
                rt::monotonic_ns() - began_ns < 60_000_000_000,
                "{:?}",
                read_management_addresses(&path, "c")
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_cluster_file_of_management_follows_its_addresses() {
        let base = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(base.path());
        update_cluster_file(&paths, "c", &texts(&["10.0.0.9:7500"]));
        assert!(!paths.cluster_file().exists(), "a removed file stays away");
        let text = "# mine\ncluster = \"c\"\nmanagement = [\"10.0.0.1:7500\"]\n";
        std::fs::write(paths.cluster_file(), text).unwrap();
        let addresses = || read_management_addresses(&paths.cluster_file(), "c").unwrap();
        update_cluster_file(&paths, "other", &texts(&["10.0.0.9:7500"]));
        assert_eq!(addresses(), ["10.0.0.1:7500"], "a file of another cluster");
        update_cluster_file(&paths, "c", &texts(&["10.0.0.9:7500"]));
        assert_eq!(addresses(), ["10.0.0.9:7500", "10.0.0.1:7500"]);
        assert!(std::fs::read_to_string(paths.cluster_file()).unwrap().starts_with("# mine"));
    }

    #[test]
    fn a_name_that_cant_be_resolved_leaves_the_addresses() {
        let management_addresses = ManagementAddresses::fixed(&texts(&["127.0.0.1:7500", "no port"]));
        assert_eq!(management_addresses.resolve().unwrap(), ["127.0.0.1:7500".parse().unwrap()]);
        assert!(ManagementAddresses::fixed(&texts(&["no port"])).resolve().is_err());
        assert!(ManagementAddresses::fixed(&[]).resolve().is_err());
    }

    #[test]
    fn an_unresolvable_name_keeps_its_last_addresses() {
        let management_addresses = ManagementAddresses::fixed(&texts(&["mgmt:7500", "10.0.0.1:7500"]));
        let resolved = |is_up: bool| -> Vec<String> {
            let found = management_addresses.resolve_by(|name| match name {
                "mgmt:7500" if is_up => Ok(vec!["192.0.2.5:7500".parse().unwrap()]),
                "mgmt:7500" => Err(Errno::ETIMEDOUT.into()),
                address => Ok(vec![address.parse().unwrap()]),
            });
            found.unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(resolved(false), ["10.0.0.1:7500"]);
        assert_eq!(resolved(true), ["192.0.2.5:7500", "10.0.0.1:7500"]);
        assert_eq!(resolved(false), ["192.0.2.5:7500", "10.0.0.1:7500"], "connections to it stay");
    }
}
