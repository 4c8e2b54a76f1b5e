//! `mount.fuse.weft SOURCE MOUNTPOINT -o OPTIONS`: the helper that mount(8) calls for the type
//! `fuse.weft`. The source is a state directory or, for a client, a cluster file.

use super::{mount, up};
use crate::cli::{MountArgs, MountHelperArgs, UpArgs};
use crate::exit::{ArgumentCheck, Exit, Outcome};
use crate::mount_options::MountOptions;
use crate::output::os_error;
use rustix::mount::{MountFlags, mount_remount};
use std::path::Path;
use types::Result;

/// Mounts a cluster (after starting it in the background, if it is a cluster in one process), or
/// changes the options of a mounted one.
pub fn run(args: &MountHelperArgs) -> Outcome {
    let options = MountOptions::parse(&args.options, args.sloppy).or_exit(Exit::MountUsage)?;
    let target = Target::of(args, &options).or_exit(Exit::MountUsage)?;
    if !args.fake {
        target.mount(args, &options).or_exit(Exit::MountFailed)?;
    }
    Ok(Exit::Success)
}

/// What to mount.
enum Target {
    /// The cluster of a cluster file, as a client.
    Cluster(MountArgs),
    /// A cluster in one process.
    Process(UpArgs),
    /// Nothing: the options of a mount change.
    Remount,
}

impl Target {
    fn of(args: &MountHelperArgs, options: &MountOptions) -> Result<Target> {
        if options.remount {
            return Ok(Target::Remount);
        }
        match args.source.is_file() {
            true => options.mount(&args.source, &args.mountpoint).map(Target::Cluster),
            false => options.up(&args.source, &args.mountpoint).map(Target::Process),
        }
    }

    fn mount(&self, args: &MountHelperArgs, options: &MountOptions) -> Result<()> {
        match self {
            Target::Remount => return remount(&args.mountpoint, options.flags),
            Target::Cluster(args) => mount::run(args)?,
            Target::Process(args) => drop(up::start(args)?),
        }
        let further = options.flags.difference(MountFlags::RDONLY);
        if further.is_empty() { Ok(()) } else { remount(&args.mountpoint, options.flags) }
    }
}

fn remount(mountpoint: &Path, flags: MountFlags) -> Result<()> {
    mount_remount(mountpoint, flags, "").map_err(|e| {
        let hint = match e {
            rustix::io::Errno::BUSY => "files are open for writing: fuser -vm shows by whom",
            rustix::io::Errno::PERM => "run as root",
            _ => "weft status shows where a cluster is mounted",
        };
        os_error(format_args!("can't remount {}", mountpoint.display()), &e.into()).hint(hint)
    })
}
