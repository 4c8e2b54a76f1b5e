//! The options of mount(8) and fstab.

use crate::assembly::DEFAULT_RETAINED_BACKUPS;
use crate::cli::{DEFAULT_TIMEOUT_S, Durability, MountArgs, Transport, UpArgs};
use clap::ValueEnum;
use rustix::mount::MountFlags;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// Options for mount(8) and systemd, and those that the kernel shows for a FUSE mount and mount(8)
/// repeats on a remount.
const IGNORED: [&str; 24] = [
    "defaults",
    "_netdev",
    "auto",
    "noauto",
    "nofail",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "async",
    "lazytime",
    "nolazytime",
    "norelatime",
    "nostrictatime",
    "loud",
    "silent",
    "default_permissions",
    "allow_other",
    "user_id",
    "group_id",
    "max_read",
    "blksize",
    "comment",
];

/// The parsed options.
#[derive(Clone, PartialEq, Debug)]
pub struct MountOptions {
    /// Change an existing mount.
    pub remount: bool,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Whether idmapped mounts are allowed.
    pub idmap: bool,
    /// Number of targets of a new cluster.
    pub targets: Option<u16>,
    /// Directories of these targets.
    pub target_dir: Vec<PathBuf>,
    /// FUSE transport.
    pub transport: Transport,
    /// What acknowledged changes survive.
    pub durability: Durability,
    /// Daily metadata backups to retain.
    pub backups: u32,
    /// Seconds until operations without an answer fail.
    pub timeout: Option<u64>,
    /// Rack of this machine.
    pub rack: Option<String>,
    /// Whether TCP is used to servers on this machine, too.
    pub no_shared_memory: bool,
    /// Whether O_DIRECT bypasses the servers' page cache, too.
    pub no_server_cache: bool,
    /// Whether small sequential writes are acknowledged before they are sent.
    pub write_behind: bool,
    /// Whether all creates are synchronous.
    pub wsync: bool,
    /// Whether only root may ask the mount for the state of the cluster.
    pub no_public_socket: bool,
    /// The last option that is only for a state directory, and the last one that is only for a
    /// cluster file.
    for_directory: Option<String>,
    for_file: Option<String>,
}

/// Options of a cluster in one process, whose source is its state directory.
const FOR_DIRECTORY: [&str; 4] = ["targets", "target-dir", "durability", "backups"];
/// Options of a client, whose source is a cluster file.
const FOR_FILE: [&str; 5] = ["timeout", "rack", "no-shared-memory", "write-behind", "wsync"];

impl MountOptions {
    /// Parses options, separated by commas; a later one overrides an earlier one.
    ///
    /// # Errors
    /// An unknown option, unless `sloppy`; an invalid value.
    pub fn parse(texts: &[String], sloppy: bool) -> Result<MountOptions> {
        let mut options = MountOptions {
            remount: false,
            flags: MountFlags::empty(),
            idmap: false,
            targets: None,
            target_dir: vec![],
            transport: Transport::default(),
            durability: Durability::default(),
            backups: DEFAULT_RETAINED_BACKUPS,
            timeout: None,
            rack: None,
            no_shared_memory: false,
            no_server_cache: false,
            write_behind: false,
            wsync: false,
            no_public_socket: false,
            for_directory: None,
            for_file: None,
        };
        let words = texts.iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if !options.set_option(name, value).ok_or_else(|| bad_value(name, value))? && !sloppy {
                return Err(Error::new(Errno::EINVAL, format!("unknown mount option {word:?}")).hint(
                    "weft knows ro, rw, idmap, transport=auto|uring|dev, no-server-cache and no-public-socket; for a state directory targets=N, target-dir=DIR, durability=relaxed|strict and backups=N; for a cluster file timeout=SECONDS, rack=NAME, no-shared-memory, write-behind and wsync",
                ));
            }
            let noted = |names: &[&str]| names.contains(&name).then(|| name.to_string());
            options.for_directory = noted(&FOR_DIRECTORY).or(options.for_directory);
            options.for_file = noted(&FOR_FILE).or(options.for_file);
        }
        Ok(options)
    }

    /// Returns whether the option is known; `None` for an invalid value.
    fn set_option(&mut self, name: &str, value: &str) -> Option<bool> {
        match name {
            "remount" => self.remount = true,
            "idmap" => self.idmap = true,
            "targets" => self.targets = Some(value.parse().ok().filter(|n| *n > 0)?),
            "target-dir" => self.target_dir.push(Some(value).filter(|v| !v.is_empty())?.into()),
            "transport" => self.transport = Transport::from_str(value, false).ok()?,
            "durability" => self.durability = Durability::from_str(value, false).ok()?,
            "backups" => self.backups = value.parse().ok()?,
            "timeout" => self.timeout = Some(value.parse().ok().filter(|s| (1..=86_400).contains(s))?),
            "rack" => self.rack = Some(Some(value).filter(|v| !v.is_empty())?.into()),
            "no-shared-memory" => self.no_shared_memory = true,
            "no-server-cache" => self.no_server_cache = true,
            "write-behind" => self.write_behind = true,
            "wsync" => self.wsync = true,
            "no-public-socket" => self.no_public_socket = true,
            name if name.starts_with("x-") || name.starts_with("X-") || IGNORED.contains(&name) => {}
            name => match flag(name) {
                Some((flag, on)) => self.flags.set(flag, on),
                None => return Some(false),
            },
        }
        Some(true)
    }

    /// Returns the arguments of `weft up` that are equivalent to `mount SOURCE MOUNTPOINT` with
    /// these options, if the source is a state directory.
    ///
    /// # Errors
    /// An option that is for a cluster file.
    pub fn up(&self, source: &Path, mountpoint: &Path) -> Result<UpArgs> {
        if let Some(name) = &self.for_file {
            return Err(wrong_source_error(name, source, "a state directory", "a cluster file"));
        }
        Ok(UpArgs {
            dir: source.to_path_buf(),
            mount: mountpoint.to_path_buf(),
            targets: self.targets,
            target_dir: self.target_dir.clone(),
            detach: true,
            transport: self.transport,
            durability: self.durability,
            no_server_cache: self.no_server_cache,
            read_only: self.flags.contains(MountFlags::RDONLY),
            idmap: self.idmap,
            no_public_socket: self.no_public_socket,
            backups: self.backups,
            detached: false,
        })
    }

    /// Returns the equivalent arguments of `weft mount`, if the source is a cluster file.
    ///
    /// # Errors
    /// An option that is for a state directory.
    pub fn mount(&self, source: &Path, mountpoint: &Path) -> Result<MountArgs> {
        if let Some(name) = &self.for_directory {
            return Err(wrong_source_error(name, source, "a cluster file", "a state directory"));
        }
        Ok(MountArgs {
            cluster: source.to_path_buf(),
            mountpoint: mountpoint.to_path_buf(),
            timeout: self.timeout.unwrap_or(DEFAULT_TIMEOUT_S),
            network: vec![],
            rack: self.rack.clone(),
            read_only: self.flags.contains(MountFlags::RDONLY),
            idmap: self.idmap,
            transport: self.transport,
            no_server_cache: self.no_server_cache,
            write_behind: self.write_behind,
            wsync: self.wsync || self.flags.intersects(MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC),
            no_shared_memory: self.no_shared_memory,
            no_public_socket: self.no_public_socket,
            foreground: false,
            log: None,
            detached: false,
        })
    }
}

fn wrong_source_error(name: &str, source: &Path, is: &str, wanted: &str) -> Error {
    let message = format!("mount option {name} is for {wanted}, and {} is {is}", source.display());
    Error::new(Errno::EINVAL, message).hint(format!("leave {name} out"))
}

/// Returns the flag of mount(2) that an option sets or clears.
fn flag(name: &str) -> Option<(MountFlags, bool)> {
    Some(match name {
        "ro" => (MountFlags::RDONLY, true),
        "rw" => (MountFlags::RDONLY, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "suid" => (MountFlags::NOSUID, false),
        "nodev" => (MountFlags::NODEV, true),
        "dev" => (MountFlags::NODEV, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "exec" => (MountFlags::NOEXEC, false),
        "noatime" => (MountFlags::NOATIME, true),
        "atime" => (MountFlags::NOATIME, false),
        "nodiratime" => (MountFlags::NODIRATIME, true),
        "diratime" => (MountFlags::NODIRATIME, false),
        "relatime" => (MountFlags::RELATIME, true),
        "strictatime" => (MountFlags::STRICTATIME, true),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "dirsync" => (MountFlags::DIRSYNC, true),
        _ => return None,
    })
}

fn bad_value(name: &str, value: &str) -> Error {
    let hint = match name {
        "transport" => "write transport=auto, transport=uring or transport=dev",
        "durability" => "write durability=relaxed or durability=strict",
        "targets" => "write for example targets=4",
        "backups" => "write for example backups=7",
        "timeout" => "write for example timeout=60, in seconds, a day at most",
        "rack" => "write for example rack=r12",
        _ => "write for example target-dir=/disk1/weft",
    };
    Error::new(Errno::EINVAL, format!("mount option {name} can't be {value:?}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions> {
        MountOptions::parse(&[text.to_string()], false)
    }

    #[test]
    fn a_mount_is_an_up() {
        let options =
            parse("rw,noauto,_netdev,x-systemd.automount,targets=3,transport=dev,durability=strict").unwrap();
        let up = options.up(Path::new("/d"), Path::new("/m")).unwrap();
        assert_eq!((up.dir, up.mount), ("/d".into(), "/m".into()));
        assert_eq!(up.targets, Some(3));
        assert_eq!((up.transport, up.durability), (Transport::Dev, Durability::Strict));
        assert!(up.detach && !up.read_only && !options.remount);
    }

    #[test]
    fn the_last_word_counts() {
        let is_read_only =
            |text| parse(text).unwrap().up(Path::new("/d"), Path::new("/m")).unwrap().read_only;
        assert!(is_read_only("rw,ro") && !is_read_only("ro,rw"));
    }

    #[test]
    fn the_public_socket_is_an_option_of_both_kinds_of_mounts() {
        for (text, is_off) in [("rw", false), ("rw,no-public-socket", true)] {
            let options = parse(text).unwrap();
            let (up, mount) = (
                options.up(Path::new("/d"), Path::new("/m")),
                options.mount(Path::new("/c"), Path::new("/m")),
            );
            assert_eq!((up.unwrap().no_public_socket, mount.unwrap().no_public_socket), (is_off, is_off));
        }
    }

    #[test]
    fn a_cluster_file_is_mounted_as_a_client() {
        let client = |text: &str| parse(text).unwrap().mount(Path::new("/c.toml"), Path::new("/m"));
        let mount =
            client("ro,idmap,_netdev,timeout=20,rack=r1,no-shared-memory,write-behind,wsync,transport=dev")
                .unwrap();
        assert_eq!((mount.cluster, mount.mountpoint, mount.timeout), ("/c.toml".into(), "/m".into(), 20));
        assert_eq!((mount.rack.as_deref(), mount.transport), (Some("r1"), Transport::Dev));
        assert!(
            mount.read_only && mount.idmap && mount.no_shared_memory && mount.write_behind && mount.wsync
        );
        assert!(client("dirsync").unwrap().wsync && !client("rw").unwrap().wsync);
        assert!(!mount.foreground && !client("rw").unwrap().idmap);
        assert_eq!(client("defaults").unwrap().timeout, DEFAULT_TIMEOUT_S);
        let error = client("backups=3").unwrap_err();
        assert!(error.message.contains("backups is for a state directory, and /c.toml is"), "{error}");
        let error = parse("rack=a").unwrap().up(Path::new("/d"), Path::new("/m")).unwrap_err();
        assert!(error.message.contains("rack is for a cluster file, and /d is"), "{error}");
    }

    #[test]
    fn a_remount_repeats_what_the_kernel_shows() {
        let options =
            parse("remount,ro,nosuid,relatime,user_id=0,group_id=0,default_permissions,allow_other").unwrap();
        assert!(options.remount);
        assert_eq!(options.flags, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME);
    }

    #[test]
    fn options_come_in_several_pieces() {
        let texts = ["ro,,".to_string(), "targets=2".to_string()];
        let options = MountOptions::parse(&texts, false).unwrap();
        assert_eq!((options.flags, options.targets), (MountFlags::RDONLY, Some(2)));
    }

    #[test]
    fn unknown_options_and_values_are_refused() {
        assert!(parse("rw,quotas").unwrap_err().message.contains("\"quotas\""));
        assert!(MountOptions::parse(&["quotas".to_string()], true).is_ok());
        for text in [
            "targets=0",
            "targets=x",
            "targets",
            "transport=pigeon",
            "durability=",
            "target-dir",
            "timeout=0",
            "rack",
        ] {
            assert_eq!(parse(text).unwrap_err().errno, Errno::EINVAL, "{text}");
        }
    }
}
