//! `node.toml`, the configuration of a node, and the cluster file, which a client needs.

use crate::output::os_error;
use identity::{Credentials, require_private_file};
use net::Networks;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use types::{Errno, Error, NodeId, Result, Role};

/// Default address to listen on: all addresses of the machine.
pub const DEFAULT_LISTEN: &str = "0.0.0.0:7500";

/// Locked while a file is read, changed and written: threads of a process must not undo each
/// other's changes.
static EDIT_LOCK: Mutex<()> = Mutex::new(());

/// Protection of connections.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Mutual authentication and encryption
    #[default]
    Tls,
    /// Mutual authentication without encryption: for a trusted network
    Authenticated,
    /// No authentication and no encryption: for one machine, or an isolated network
    Plain,
}

/// Configuration file of a node.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// UUID of the cluster.
    pub cluster: String,
    /// Id of the node.
    pub node: NodeId,
    /// Initial name of the node; the map has the current one.
    #[serde(default)]
    pub name: String,
    /// Initial rack of the node; the map has the current one.
    #[serde(default)]
    pub rack: Option<String>,
    /// Roles of the node.
    pub roles: Vec<Role>,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Addresses at which others reach the node.
    pub addresses: Vec<String>,
    /// Addresses of management: `host:port`.
    pub management: Vec<String>,
    /// Networks for connections, best first ([`net::Networks`]); empty: all.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Protection of connections, the same on all nodes.
    #[serde(default)]
    pub protection: Protection,
    /// Threads that serve connections; by default one per CPU.
    #[serde(default)]
    pub threads: Option<usize>,
    /// NUMA zone of this machine that the process is bound to; by default none.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Addresses of the HTTP interface for administrators' programs; by default none.
    #[serde(default)]
    pub api: Vec<SocketAddr>,
    /// Further names of the management node in its certificate for programs, besides those in the
    /// cluster map.
    #[serde(default)]
    pub api_names: Vec<String>,
    /// What an acknowledged metadata change survives.
    #[serde(default)]
    pub durability: crate::cli::Durability,
    /// Daily metadata backups to retain, on the management node; by default 7; 0: none are made.
    #[serde(default)]
    pub backups: Option<u32>,
    /// Directories of targets.
    #[serde(default, rename = "target")]
    pub targets: Vec<TargetConfig>,
}

/// Directory of a target, existing or new.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Path of the directory.
    pub path: PathBuf,
    /// Pool that a new target joins.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// NUMA zone of its disk. A process that is bound to another zone doesn't serve the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Whether the next start makes the directory a target. Without it, an empty directory is
    /// refused, because its disk may not be mounted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub new: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn default_pool() -> String {
    mgmt::DEFAULT_POOL.1.to_string()
}

impl NodeConfig {
    /// Reads a node's file.
    ///
    /// # Errors
    /// `ENOENT` for a directory without a node.
    pub fn read(dir: &Path) -> Result<NodeConfig> {
        let path = path(dir);
        let text = fs::read_to_string(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => no_node_error(dir),
            _ => os_error(path.display(), &e),
        })?;
        toml::from_str(&text).map_err(|e| {
            Error::new(Errno::EINVAL, format!("{} is invalid: {}", path.display(), e.message()))
                .hint("docs/guide/cluster.md describes its fields")
        })
    }

    /// Writes the file of a new node.
    pub fn create(&self, dir: &Path, cluster_name: &str) -> Result<()> {
        write_atomically(&path(dir), &self.render(cluster_name), 0o644)
    }

    fn render(&self, cluster_name: &str) -> String {
        let roles: Vec<&str> = self.roles.iter().map(|role| role.name()).collect();
        let protection = crate::cli::value_name(self.protection);
        let networks = match &self.networks[..] {
            [] => "# networks = [\"10.0.0.0/8\"]".to_string(),
            some => format!("networks = {some:?}"),
        };
        let rack = self.rack.as_ref().map_or_else(String::new, |rack| format!("rack = {rack:?}\n"));
        let mut text = format!(
            "# A node of the weft cluster {cluster_name:?}. What is left out has a computed default.\n\
             cluster = {:?}\n\
             node = {}\n\
             name = {:?}\n\
             {rack}\
             roles = {roles:?}\n\
             # Addresses to listen on.\n\
             listen = {:?}\n\
             # Addresses for other nodes and clients, best first.\n\
             addresses = {:?}\n\
             # Addresses or host names of management; the node adds those of the cluster map.\n\
             management = {:?}\n\
             # Networks for its connections, best first; \"A/16,B/16\": equally good.\n\
             {networks}\n\
             # tls, authenticated (not encrypted) or plain; the same on all nodes.\n\
             protection = {protection:?}\n\
             # Threads that serve connections: one for each CPU.\n\
             # threads = 8\n\
             # NUMA zone for its CPUs and memory; targets of other zones are not served.\n\
             # numa = 0\n\
             # Addresses of the HTTP and JSON interface, described in docs/reference/openapi.json.\n\
             # api = [\"127.0.0.1:7580\"]\n\
             # api_names = [\"weft.example.com\"] # further names in its certificate there, on the management node\n",
            self.cluster,
            self.node,
            self.name,
            self.listen.iter().map(SocketAddr::to_string).collect::<Vec<_>>(),
            self.addresses,
            self.management,
        );
        if self.roles.contains(&Role::Meta) {
            text += "# relaxed or strict: what an acknowledged change survives without fsync.\n";
            let _ = writeln!(text, "durability = {:?}", crate::cli::value_name(self.durability));
        }
        if self.roles.contains(&Role::Mgmt) {
            text += "# backups = 7 # daily metadata backups to retain in backups/; 0: none\n";
        }
        text += "\n# Directories of targets; weft target add appends to them.\n";
        self.targets.iter().for_each(|target| text += &target.render());
        text
    }
}

impl TargetConfig {
    fn render(&self) -> String {
        let value = |text: &str| toml::Value::String(text.to_string()).to_string();
        let numa = self.numa.map_or_else(String::new, |zone| format!("numa = {zone}\n"));
        let (path, pool) = (value(&self.path.to_string_lossy()), value(&self.pool));
        let new = if self.new { "new = true\n" } else { "" };
        format!("[[target]]\npath = {path}\npool = {pool}\n{numa}{new}")
    }

    /// Adds the directory to the node's file, unless it is listed there already.
    ///
    /// # Errors
    /// `EEXIST` if it is listed with another NUMA zone.
    pub fn append(&self, dir: &Path) -> Result<()> {
        let config = NodeConfig::read(dir)?;
        let path = path(dir);
        if let Some(known) = config.targets.iter().find(|target| target.path == self.path) {
            if self.numa.is_none() || self.numa == known.numa {
                let is_it = |at: &Path| self.new && at == self.path;
                return edit_targets(dir, |target, at| {
                    is_it(at) && target.insert("new", toml_edit::value(true)).is_none()
                });
            }
            let zone = known.numa.map_or_else(|| "none".into(), |zone| zone.to_string());
            let message = format!("{} is a target already, and its NUMA zone is {zone}", self.path.display());
            let hint = format!("change numa of the target in {}, and start the node again", path.display());
            return Err(Error::new(Errno::EEXIST, message).hint(hint));
        }
        let _guard = EDIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let text = fs::read_to_string(&path).map_err(|e| os_error(path.display(), &e))?;
        write_atomically(&path, &format!("{text}{}", self.render()), 0o644)
    }
}

/// Records in a node's file that directories have become targets, so that no later start creates
/// them again. The rest of the file stays as it was written.
pub fn mark_targets_created(dir: &Path, made: &[PathBuf]) -> Result<()> {
    edit_targets(dir, |target, at| made.iter().any(|made| made == at) && target.remove("new").is_some())
}

/// Removes directories from a node's file whose targets were removed from the cluster.
pub fn remove_targets(dir: &Path, removed: &[PathBuf]) -> Result<()> {
    let path = path(dir);
    let _guard = EDIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut file = editable(&path)?;
    let Some(targets) = file.get_mut("target").and_then(toml_edit::Item::as_array_of_tables_mut) else {
        return Ok(());
    };
    let before = targets.len();
    targets.retain(|target| path_of(target).is_none_or(|at| !removed.contains(&at)));
    if targets.len() < before { write_atomically(&path, &file.to_string(), 0o644) } else { Ok(()) }
}

fn editable(path: &Path) -> Result<toml_edit::DocumentMut> {
    let text = fs::read_to_string(path).map_err(|e| os_error(path.display(), &e))?;
    text.parse().map_err(|e: toml_edit::TomlError| {
        Error::new(Errno::EINVAL, format!("{} can't be changed: {}", path.display(), e.message()))
            .hint("docs/guide/cluster.md describes its fields")
    })
}

fn path_of(target: &toml_edit::Table) -> Option<PathBuf> {
    target.get("path").and_then(toml_edit::Item::as_str).map(PathBuf::from)
}

/// Calls `edit` for each target of a node's file, with its path. `edit` returns whether it changed
/// the target.
fn edit_targets(dir: &Path, edit: impl Fn(&mut toml_edit::Table, &Path) -> bool) -> Result<()> {
    let path = path(dir);
    let _guard = EDIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut file = editable(&path)?;
    let mut is_changed = false;
    let targets = file.get_mut("target").and_then(toml_edit::Item::as_array_of_tables_mut);
    for target in targets.into_iter().flat_map(|targets| targets.iter_mut()) {
        if let Some(at) = path_of(target) {
            is_changed |= edit(target, &at);
        }
    }
    if is_changed { write_atomically(&path, &file.to_string(), 0o644) } else { Ok(()) }
}

/// Returns the addresses of management from a node's file or a cluster file; `None` if the file
/// belongs to another cluster.
pub fn read_management_addresses(path: &Path, cluster: &str) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Part {
        cluster: String,
        management: Vec<String>,
    }
    let part: Part = toml::from_str(&fs::read_to_string(path).ok()?).ok()?;
    Some(part.management).filter(|management| part.cluster == cluster && !management.is_empty())
}

/// Writes the addresses of management into a node's file or a cluster file. The rest stays as it
/// was written.
///
/// # Errors
/// `EACCES` for a file of another user: replacing it would change its owner.
pub fn write_management_addresses(path: &Path, cluster: &str, addresses: &[String]) -> Result<()> {
    let _guard = EDIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if read_management_addresses(path, cluster).is_none() {
        return Err(Error::new(Errno::EINVAL, format!("{} is not a file of this cluster", path.display())));
    }
    let meta = fs::metadata(path).map_err(|e| os_error(path.display(), &e))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::new(Errno::EACCES, format!("{} belongs to another user", path.display())));
    }
    let mut file = editable(path)?;
    file["management"] = toml_edit::value(addresses.iter().collect::<toml_edit::Array>());
    replace_file(path, &file.to_string(), &meta)
}

fn path(dir: &Path) -> PathBuf {
    mgmt::StatePaths::new(dir).node_config()
}

/// Returns whether a directory holds a node of a cluster of several machines.
pub fn is_node(dir: &Path) -> bool {
    path(dir).exists()
}

/// Refuses to run the node of a cluster as if it were a cluster in one process.
pub fn require_no_node(dir: &Path) -> Result<()> {
    if !is_node(dir) {
        return Ok(());
    }
    let shown = dir.display();
    Err(Error::new(Errno::EINVAL, format!("{shown} holds a node of a cluster of several machines"))
        .hint(format!("weft serve --dir {shown} runs it, weft mount mounts the cluster")))
}

/// Returns the error for a directory that isn't a node's.
pub fn no_node_error(dir: &Path) -> Error {
    let shown = dir.display();
    let hint = match mgmt::StatePaths::new(dir).target_list().exists() {
        true => format!("it holds a cluster of one process: weft up --dir {shown} --mount MOUNTPOINT"),
        false => {
            "create one with weft cluster init or weft node join, or name its directory with --dir".into()
        }
    };
    Error::new(Errno::ENOENT, format!("{shown} holds no node of a cluster")).hint(hint)
}

/// Returns the error for a cluster file that other users can read: its private key lets them mount.
fn readable_by_others_error(path: &Path, error: identity::Error) -> Error {
    let shown = path.display();
    let cause = Error::from(error);
    Error::new(cause.errno, format!("the cluster file has a private key: {}", cause.message)).hint(format!(
        "chown $(id -u) {shown} && chmod 600 {shown}; if others have read it, replace it with weft client revoke NAME and weft client add NAME on the management node"
    ))
}

/// Writes a file atomically and durably.
pub fn write_atomically(path: &Path, text: &str, mode: u32) -> Result<()> {
    write_draft_and_rename(path, text, mode, |_| Ok(()))
}

/// Replaces a file, and keeps its owner and mode.
fn replace_file(path: &Path, text: &str, known: &fs::Metadata) -> Result<()> {
    write_draft_and_rename(path, text, 0o600, |file| {
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != (known.uid(), known.gid()) {
            std::os::unix::fs::fchown(file, Some(known.uid()), Some(known.gid()))?;
        }
        file.set_permissions(known.permissions())
    })
}

/// Writes a draft and renames it. `finish` is called before the rename.
fn write_draft_and_rename(
    path: &Path,
    text: &str,
    mode: u32,
    finish: impl FnOnce(&fs::File) -> std::io::Result<()>,
) -> Result<()> {
    // Several mounts may write one cluster file, and renew its certificate at the same moment.
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        // A draft that a crash left may have another mode.
        match fs::remove_file(&draft) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(text.as_bytes())?;
        finish(&file)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&draft);
        os_error(format_args!("can't write {}", path.display()), &e)
    })
}

/// Everything that a client needs to mount, in one file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Name of the cluster.
    pub name: String,
    /// UUID of the cluster.
    pub cluster: String,
    /// Addresses of management: `host:port`.
    pub management: Vec<String>,
    /// Networks for the client's connections, best first ([`net::Networks`]); empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Rack of the client; by default that of a node on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Protection of connections.
    pub protection: Protection,
    /// Whether mounts of root answer other users of the machine, too.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub public_socket: bool,
    /// Certificate and key of the client, PEM; empty if connections are plain.
    #[serde(default)]
    pub credentials: String,
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

impl ClusterFile {
    /// Reads the file.
    ///
    /// # Errors
    /// `EACCES` if it has a private key and another user can read it, or owns it.
    pub fn read(path: &Path) -> Result<ClusterFile> {
        let failed = |e: std::io::Error| {
            os_error(format_args!("cluster file {}", path.display()), &e)
                .hint("weft client add NAME creates one, on the management node")
        };
        let mut opened = fs::File::open(path).map_err(failed)?;
        let mut text = String::new();
        opened.read_to_string(&mut text).map_err(failed)?;
        let file = ClusterFile::parse(path, &text)?;
        if !file.credentials.is_empty() {
            let meta = opened.metadata().map_err(failed)?;
            require_private_file(path, &meta).map_err(|error| readable_by_others_error(path, error))?;
        }
        Ok(file)
    }

    fn parse(path: &Path, text: &str) -> Result<ClusterFile> {
        toml::from_str(text).map_err(|e| {
            let message = format!("{} is not a cluster file: {}", path.display(), e.message());
            Error::new(Errno::EINVAL, message)
                .hint("weft client add NAME creates one, on the management node")
        })
    }

    /// Returns the text of the file.
    pub fn render(&self) -> String {
        let body = toml::to_string(self).expect("strings and lists of them always serialize");
        format!(
            "# Cluster file of the weft cluster {:?}: weft mount THIS_FILE MOUNTPOINT\n\
                 # It grants access to the cluster. Keep it private (mode 0600).\n{body}",
            self.name
        )
    }

    /// Writes the file, readable only by its owner.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, &self.render(), 0o600)
    }

    /// Replaces the credentials in a file atomically. The rest of it, its owner and its mode stay.
    pub fn renew(path: &Path, credentials: &Credentials) -> Result<()> {
        let _guard = EDIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let known = fs::metadata(path).map_err(|e| os_error(path.display(), &e))?;
        let file = ClusterFile { credentials: credentials.to_text(), ..ClusterFile::read(path)? };
        replace_file(path, &file.render(), &known)
    }

    /// Returns the credentials of a mount with this file; `None` if connections are plain.
    pub fn credentials(&self) -> Result<Option<Credentials>> {
        match self.credentials.as_str() {
            "" => Ok(None),
            text => Ok(Some(Credentials::from_text(text)?)),
        }
    }
}

/// Resolves names to addresses.
pub fn resolve(names: &[String]) -> Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    let mut failure = Error::new(Errno::EINVAL, "there is no address of management");
    for name in names {
        match name.to_socket_addrs() {
            Ok(addresses) => found.extend(addresses),
            Err(e) => {
                failure = os_error(format_args!("address {name:?} can't be resolved"), &e)
                    .hint("write HOST:PORT, for example mgmt1:7500")
            }
        }
    }
    if found.is_empty() { Err(failure) } else { Ok(found) }
}

/// Returns the addresses at which others reach a process with these listen addresses: each address
/// itself; for a wildcard address, those of this machine in the networks, best first, or this
/// machine's address on the route to `towards`.
///
/// # Errors
/// `EINVAL` if the machine has no address in the networks.
pub fn announced_addresses(
    listen: &[SocketAddr],
    route_target: SocketAddr,
    networks: &Networks,
) -> Result<Vec<String>> {
    if networks.is_empty() {
        return Ok(route_addresses(listen, route_target));
    }
    let local = rt::net::local_addresses().map_err(|e| os_error("this machine's addresses", &e))?;
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in listen {
        let wildcard = address.ip().is_unspecified();
        let fits = |ip: &&IpAddr| wildcard && (address.is_ipv6() || ip.is_ipv4());
        let own = if wildcard { vec![] } else { vec![address.ip()] };
        found.extend(
            local.iter().filter(fits).copied().chain(own).map(|ip| SocketAddr::new(ip, address.port())),
        );
    }
    found.retain(|address| networks.rank(address.ip()).is_some());
    found.sort_by_key(|address| networks.rank(address.ip()));
    found.dedup();
    if found.is_empty() {
        let message = format!("this machine has no address in the networks {networks}");
        return Err(Error::new(Errno::EINVAL, message)
            .hint("ip address shows what it has; --address names addresses that others reach it at"));
    }
    Ok(found.iter().map(SocketAddr::to_string).collect())
}

fn route_addresses(listen: &[SocketAddr], route_target: SocketAddr) -> Vec<String> {
    let bind = if route_target.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    // Sends nothing: the kernel only looks up the route.
    let route = std::net::UdpSocket::bind(bind).and_then(|socket| {
        socket.connect(route_target)?;
        socket.local_addr()
    });
    match route {
        Ok(own) => addresses_of(listen, &[own.ip()]),
        // A machine without a default route.
        Err(_) => addresses_of(listen, &rt::net::local_addresses().unwrap_or_default()),
    }
}

/// Returns the addresses of a process that listens there on a machine with these addresses. Without
/// any, only processes of the machine can reach it.
fn addresses_of(listen: &[SocketAddr], machine: &[IpAddr]) -> Vec<String> {
    let v4: Vec<IpAddr> = machine.iter().copied().filter(IpAddr::is_ipv4).collect();
    let machine = match (v4.is_empty(), machine.is_empty()) {
        (false, _) => v4,
        (true, false) => machine.to_vec(),
        (true, true) => vec![std::net::Ipv4Addr::LOCALHOST.into()],
    };
    let mut all = Vec::new();
    for address in listen {
        match address.ip().is_unspecified() {
            true => all.extend(machine.iter().map(|ip| SocketAddr::new(*ip, address.port()).to_string())),
            false => all.push(address.to_string()),
        }
    }
    all.dedup();
    all
}

#[cfg(test)]
mod tests;
