//! Finds the cluster that a command is about, if the command line doesn't name it.
//!
//! The first of these that exists counts: `--dir`, the variable `WEFT_DIR`, the mount that contains
//! the working directory, the only node in `/var/lib/weft`, the cluster file
//! `/etc/weft/client.toml`, `weft-data` in the working directory, the only mount of this machine.
//! Where several candidates are of equal rank, the command is refused with a list of them: it must
//! not change a cluster by chance.
//!
//! The mount table is read, and no file system that a path is on: a weft mount may hang.

use crate::assembly::ask_by_cluster_file;
use crate::control::{Control, Request, not_running};
use crate::mountpoint::{self, Mounted};
use crate::node_config::is_node;
use crate::output::os_error;
use mgmt::StatePaths;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::{Errno, Error, Result};

/// Environment variable with the default of `--dir`.
pub const DIR_VARIABLE: &str = "WEFT_DIR";

/// Default state directory of a cluster that a command creates.
pub const LOCAL_DIR: &str = "weft-data";

/// Folder with the state directories of this machine's nodes.
pub const NODES: &str = "/var/lib/weft";

/// Cluster file of this machine.
pub const CLIENT_FILE: &str = "/etc/weft/client.toml";

/// Topic of `weft help`: the rules of this module.
pub const RULES: &str = "\
A command needs a cluster. The first of these that exists counts:

  1. --dir DIR: the state directory of a node or of weft up, a path on a mount, or a cluster file
  2. the environment variable WEFT_DIR, with the same meaning
  3. the weft mount that contains the working directory
  4. the only state directory in /var/lib/weft, or /var/lib/weft itself
  5. the cluster file /etc/weft/client.toml, or the mount that was made with it
  6. weft-data in the working directory
  7. the only weft mount of this machine

If several are of the same rank, the command is refused, and lists them.

Commands that create a state directory (weft up, weft cluster init, weft node join) use --dir,
WEFT_DIR or weft-data. Commands on a state directory itself (weft serve, weft down, weft fsck,
weft target add) use a mount only if it is that of weft up, and no cluster file.
";

/// Returns the default state directory of a command that creates one.
pub fn new_directory() -> PathBuf {
    let variable = std::env::var_os(DIR_VARIABLE).filter(|value| !value.is_empty());
    variable.map_or_else(|| LOCAL_DIR.into(), PathBuf::from)
}

/// Where a cluster answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// State directory of a node, or of a cluster in one process.
    Directory(PathBuf),
    /// A mount.
    Mount(Mounted),
    /// Cluster file of a client that isn't mounted.
    ClusterFile(PathBuf),
}

/// What commands can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// A process that answers requests.
    Answers,
    /// The directory itself.
    Directory,
}

impl Place {
    /// Finds the cluster of a command. `given`: from the command line or [`DIR_VARIABLE`].
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn find(given: Option<&Path>) -> Result<Place> {
        Surroundings::here()?.find(given, Wanted::Answers)
    }

    /// Finds the state directory of a command that works on it.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn find_directory(given: Option<&Path>) -> Result<PathBuf> {
        match Surroundings::here()?.find(given, Wanted::Directory)? {
            Place::Directory(dir) => Ok(dir),
            other => Err(Error::new(Errno::ENOENT, format!("{other} is not a state directory"))
                .hint("run this command on a node, with --dir DIR")),
        }
    }

    /// Sends a request, and returns its answer.
    pub fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        match self {
            Place::ClusterFile(file) => {
                let answer = ask_by_cluster_file(file, request)?;
                serde_json::from_value(answer).map_err(|e| Error::new(Errno::EPROTO, e.to_string()))
            }
            other => other.connect()?.exchange(request),
        }
    }

    /// Like [`Place::ask`], with a time-out for the answer of a process on this machine.
    pub fn ask_with_timeout<T: DeserializeOwned>(&self, request: Request, timeout: Duration) -> Result<T> {
        match self {
            Place::ClusterFile(_) => self.ask(request),
            other => other.connect()?.exchange_with_timeout(request, timeout),
        }
    }

    /// Connects to the process of a directory or a mount.
    ///
    /// # Errors
    /// `ENOTCONN` if it doesn't run; `EOPNOTSUPP` for a cluster file, which has no process.
    pub fn connect(&self) -> Result<Control> {
        match self {
            Place::Directory(dir) => Control::connect(dir)?.ok_or_else(|| not_running(dir)),
            Place::Mount(mounted) => Control::of_any_mount(mounted)?.ok_or_else(|| {
                let at = mounted.at.display();
                Error::new(Errno::ENOTCONN, format!("the mount at {at} doesn't answer commands"))
                    .hint("its log says why; on a node, weft status --dir DIR asks the node")
            }),
            Place::ClusterFile(_) => Err(Error::new(Errno::EOPNOTSUPP, format!("no process serves {self}"))
                .hint("run this command on a node, with --dir DIR")),
        }
    }

    /// Returns the state directory: that of `weft up` for its mount, none for a client.
    fn into_directory(self) -> Option<Place> {
        match self {
            Place::Mount(mounted) => {
                is_state_directory(&mounted.source).then_some(Place::Directory(mounted.source))
            }
            Place::Directory(dir) => Some(Place::Directory(dir)),
            Place::ClusterFile(_) => None,
        }
    }

    /// Returns what to add to a command for this place.
    fn option(&self) -> String {
        let path = match self {
            Place::Directory(path) | Place::ClusterFile(path) => path,
            Place::Mount(mounted) => &mounted.at,
        };
        format!("--dir {}", path.display())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Directory(dir) => write!(f, "the state directory {}", dir.display()),
            Place::Mount(mounted) => write!(f, "the mount at {}", mounted.at.display()),
            Place::ClusterFile(file) => write!(f, "the cluster file {}", file.display()),
        }
    }
}

/// The parts of a machine and of a process in which a cluster is searched.
struct Surroundings {
    working_dir: PathBuf,
    /// Value of [`DIR_VARIABLE`].
    variable: Option<PathBuf>,
    nodes: PathBuf,
    client_file: PathBuf,
    /// All mounts, the last one at a path on top.
    mounts: Vec<Mounted>,
}

impl Surroundings {
    fn here() -> Result<Surroundings> {
        Ok(Surroundings {
            working_dir: std::env::current_dir().map_err(|e| os_error("the working directory", &e))?,
            variable: std::env::var_os(DIR_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from),
            nodes: NODES.into(),
            client_file: CLIENT_FILE.into(),
            mounts: mountpoint::all_mounts()?,
        })
    }

    fn find(&self, given: Option<&Path>, wanted: Wanted) -> Result<Place> {
        if let Some(named) = given.or(self.variable.as_deref()) {
            return self.named(named, wanted, given.is_none());
        }
        let ranks: [&dyn Fn() -> Vec<Place>; 5] = [
            &|| self.mount_of(&self.working_dir).into_iter().collect(),
            &|| self.nodes(),
            &|| self.client().into_iter().collect(),
            &|| self.local().into_iter().collect(),
            &|| self.mounts.iter().filter(|m| m.is_weft).cloned().map(Place::Mount).collect(),
        ];
        for rank in ranks {
            let mut found = rank();
            if wanted == Wanted::Directory {
                found = found.into_iter().filter_map(Place::into_directory).collect();
            }
            match found.len() {
                0 => {}
                1 => return Ok(found.swap_remove(0)),
                _ => return Err(several(&found)),
            }
        }
        Err(self.none_found(wanted))
    }

    /// Returns the place that the user names.
    fn named(&self, named: &Path, wanted: Wanted, by_variable: bool) -> Result<Place> {
        let path = self.working_dir.join(named);
        if let Some(mount) = self.mount_of(&path) {
            return match (wanted, mount.clone().into_directory()) {
                (Wanted::Directory, Some(dir)) => Ok(dir),
                _ => Ok(mount),
            };
        }
        if is_state_directory(&path) {
            return Ok(Place::Directory(path));
        }
        if wanted == Wanted::Answers && path.is_file() {
            return Ok(self.mounted_with(&path).unwrap_or(Place::ClusterFile(path)));
        }
        // Behind a symbolic link, or a path with `..`.
        if let Some(mount) = path.canonicalize().ok().and_then(|real| self.mount_of(&real)) {
            return Ok(mount);
        }
        let shown = path.display();
        let source = if by_variable { format!(" ({DIR_VARIABLE} names it)") } else { String::new() };
        if let Err(e) = path.metadata()
            && e.kind() == std::io::ErrorKind::PermissionDenied
        {
            return Err(os_error(format_args!("can't open {shown}{source}"), &e).hint(
                "run as root; on a mount, weft health, weft df and weft target list work for every user",
            ));
        }
        let error = Error::new(Errno::ENOENT, format!("there is no weft cluster in {shown}{source}"));
        Err(error.hint(self.remedy(&format!("weft up --dir {shown} --mount MOUNTPOINT creates one"))))
    }

    /// Returns the weft mount that contains a path.
    fn mount_of(&self, path: &Path) -> Option<Place> {
        let path: PathBuf = path.components().collect();
        let depth = |mounted: &&Mounted| mounted.at.components().count();
        // Of several mounts at one path, the last one is visible, and `max_by_key` returns it.
        let holder = self.mounts.iter().filter(|mounted| path.starts_with(&mounted.at)).max_by_key(depth)?;
        holder.is_weft.then(|| Place::Mount(holder.clone()))
    }

    /// Returns the state directories of this machine's nodes.
    fn nodes(&self) -> Vec<Place> {
        nodes_in(&self.nodes).into_iter().map(Place::Directory).collect()
    }

    fn client(&self) -> Option<Place> {
        let file = &self.client_file;
        self.mounted_with(file).or_else(|| {
            // Another user can't use the file.
            std::fs::File::open(file).is_ok().then(|| Place::ClusterFile(file.clone()))
        })
    }

    /// Returns the mount that was made with a cluster file.
    fn mounted_with(&self, file: &Path) -> Option<Place> {
        let with_it = |mounted: &&Mounted| mounted.is_weft && mounted.source == file;
        self.mounts.iter().rfind(with_it).cloned().map(Place::Mount)
    }

    fn local(&self) -> Option<Place> {
        let dir = self.working_dir.join(LOCAL_DIR);
        is_state_directory(&dir).then_some(Place::Directory(dir))
    }

    /// Returns the existing clusters of this machine as a remedy; `otherwise` if there is none.
    fn remedy(&self, otherwise: &str) -> String {
        let mut known = self.nodes();
        known.extend(
            self.client()
                .or_else(|| self.client_file.exists().then(|| Place::ClusterFile(self.client_file.clone()))),
        );
        known.extend(self.mounts.iter().filter(|m| m.is_weft).cloned().map(Place::Mount));
        match known.is_empty() {
            true => otherwise.to_string(),
            false => options(&known),
        }
    }

    fn none_found(&self, wanted: Wanted) -> Error {
        let (nodes, file) = (self.nodes.display(), self.client_file.display());
        let message = match wanted {
            Wanted::Answers => format!(
                "no cluster was found: the working directory is on no weft mount, and there is no node in {nodes}, no {file} that you can read, and no ./{LOCAL_DIR}"
            ),
            Wanted::Directory => {
                format!("no state directory was found: there is none in {nodes}, and no ./{LOCAL_DIR}")
            }
        };
        let otherwise = "weft up --mount MOUNTPOINT creates a cluster; --dir names an existing one";
        let hint = match wanted {
            Wanted::Answers => self.remedy(otherwise),
            Wanted::Directory if self.remedy("").is_empty() => otherwise.into(),
            Wanted::Directory => "run it on a node, or name a state directory with --dir".into(),
        };
        Error::new(Errno::ENOENT, message).hint(hint)
    }
}

fn several(found: &[Place]) -> Error {
    let names: Vec<String> = found.iter().map(ToString::to_string).collect();
    Error::new(Errno::EINVAL, format!("this machine has several clusters: {}", names.join(", ")))
        .hint(options(found))
}

fn options(places: &[Place]) -> String {
    let options: Vec<String> = places.iter().map(Place::option).collect();
    format!("add {}", options.join(", or "))
}

/// Returns the state directories in a folder, or the folder itself if it is one; none if this user
/// may not read it.
pub fn nodes_in(folder: &Path) -> Vec<PathBuf> {
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        below.chain([folder.to_path_buf()]).filter(|dir| is_state_directory(dir)).collect();
    found.sort();
    found
}

fn is_state_directory(dir: &Path) -> bool {
    StatePaths::new(dir).superblock().exists() || is_node(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A machine below a temporary directory.
    fn machine(base: &Path) -> Surroundings {
        fs::create_dir_all(base.join("work")).unwrap();
        Surroundings {
            working_dir: base.join("work"),
            variable: None,
            nodes: base.join("nodes"),
            client_file: base.join("client.toml"),
            mounts: vec![mounted("/", "/dev/vda", false)],
        }
    }

    fn mounted(at: impl Into<PathBuf>, source: impl Into<PathBuf>, is_weft: bool) -> Mounted {
        Mounted { at: at.into(), source: source.into(), is_weft }
    }

    fn state_directory(dir: PathBuf) -> PathBuf {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("weft.toml"), "").unwrap();
        dir
    }

    fn found(machine: &Surroundings) -> Place {
        machine.find(None, Wanted::Answers).unwrap()
    }

    #[test]
    fn the_first_rank_that_exists_counts() {
        let base = tempfile::tempdir().unwrap();
        let mut machine = machine(base.path());
        let error = machine.find(None, Wanted::Answers).unwrap_err();
        assert!(error.hint.contains("weft up --mount"), "{error}");

        let far = mounted("/far", "/elsewhere.toml", true);
        machine.mounts.push(far.clone());
        assert_eq!(found(&machine), Place::Mount(far));
        let local = state_directory(machine.working_dir.join(LOCAL_DIR));
        assert_eq!(found(&machine), Place::Directory(local));
        fs::write(&machine.client_file, "").unwrap();
        assert_eq!(found(&machine), Place::ClusterFile(machine.client_file.clone()));
        let client = mounted("/client", &machine.client_file, true);
        machine.mounts.push(client.clone());
        assert_eq!(found(&machine), Place::Mount(client));
        let node = state_directory(machine.nodes.join("a"));
        assert_eq!(found(&machine), Place::Directory(node.clone()));
        let around = mounted(&machine.working_dir, "/c.toml", true);
        machine.mounts.push(around.clone());
        assert_eq!(found(&machine), Place::Mount(around));
        let named = state_directory(base.path().join("named"));
        machine.variable = Some(named.clone());
        assert_eq!(found(&machine), Place::Directory(named.clone()));
        assert_eq!(machine.find(Some(&node), Wanted::Answers), Ok(Place::Directory(node)));
        machine.variable = Some(base.path().join("absent"));
        let error = machine.find(None, Wanted::Answers).unwrap_err();
        assert!(error.message.contains("WEFT_DIR names it"), "{error}");
    }

    #[test]
    fn several_candidates_are_listed_with_their_options() {
        let base = tempfile::tempdir().unwrap();
        let mut machine = machine(base.path());
        let nodes = ["a", "b"].map(|name| state_directory(machine.nodes.join(name)));
        let error = machine.find(None, Wanted::Answers).unwrap_err();
        for node in &nodes {
            assert!(error.hint.contains(&format!("--dir {}", node.display())), "{error}");
        }
        fs::remove_dir_all(&machine.nodes).unwrap();
        machine.mounts.extend([mounted("/x", "/1", true), mounted("/y", "/2", true)]);
        let error = machine.find(None, Wanted::Answers).unwrap_err();
        assert_eq!(error.hint, "add --dir /x, or --dir /y");
    }

    #[test]
    fn a_machine_of_a_cluster_gets_no_hint_to_create_one() {
        let base = tempfile::tempdir().unwrap();
        let machine = machine(base.path());
        let wrong = base.path().join("wrong");
        let hint = || machine.find(Some(&wrong), Wanted::Answers).unwrap_err().hint;
        assert!(hint().contains("weft up --dir"), "{}", hint());
        fs::write(&machine.client_file, "").unwrap();
        assert!(!hint().contains("weft up") && hint().contains("client.toml"), "{}", hint());
        let without = machine.find(None, Wanted::Directory).unwrap_err();
        assert!(!without.hint.contains("weft up"), "{without}");
        let node = state_directory(machine.nodes.join("a"));
        assert!(hint().contains(&format!("--dir {}", node.display())), "{}", hint());
    }

    #[test]
    fn a_path_belongs_to_the_innermost_mount() {
        let base = tempfile::tempdir().unwrap();
        let mut machine = machine(base.path());
        let (weft, other) = (mounted("/m", "/c", true), mounted("/m/inside", "tmpfs", false));
        machine.mounts.extend([weft.clone(), other]);
        assert_eq!(machine.mount_of(Path::new("/m/a/b/")), Some(Place::Mount(weft)));
        assert_eq!(machine.mount_of(Path::new("/m/inside/a")), None);
        assert_eq!(machine.mount_of(Path::new("/mm")), None);
        // A mount that hides another one.
        machine.mounts.push(mounted("/m", "tmpfs", false));
        assert_eq!(machine.mount_of(Path::new("/m/a")), None);
    }

    #[test]
    fn a_command_on_a_directory_uses_no_mount() {
        let base = tempfile::tempdir().unwrap();
        let mut machine = machine(base.path());
        machine.mounts.push(mounted(&machine.working_dir, "/c.toml", true));
        assert!(machine.find(None, Wanted::Directory).is_err());
        let node = state_directory(machine.nodes.join("a"));
        assert_eq!(machine.find(None, Wanted::Directory), Ok(Place::Directory(node)));
        // The mount of a cluster in one process leads to its directory.
        let up = state_directory(base.path().join("up"));
        machine.mounts.push(mounted(&machine.working_dir, &up, true));
        assert_eq!(machine.find(None, Wanted::Directory), Ok(Place::Directory(up)));
    }
}
