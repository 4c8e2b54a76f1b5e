//! `mount.fuse.weft SOURCE MOUNTPOINT -o OPTIONS`: the helper that mount(8) calls for the type
//! `fuse.weft`. The source is a state directory or, for a client, a cluster file.

use super::{mount, up};
use crate::cli::MountHelperArgs;
use crate::mount_options::MountOptions;
use crate::output::os_error;
use rustix::mount::{MountFlags, mount_remount};
use std::path::Path;
use types::Result;

/// Mounts a cluster (after starting it in the background, if it is a cluster in one process), or
/// changes the options of a mounted one.
pub fn run(args: &MountHelperArgs) -> Result<()> {
    let options = MountOptions::parse(&args.options, args.sloppy)?;
    if args.fake {
        return Ok(());
    }
    if options.remount {
        return remount(&args.mountpoint, options.flags);
    }
    match args.source.is_file() {
        true => mount::run(&options.mount(&args.source, &args.mountpoint)?)?,
        false => drop(up::start(&options.up(&args.source, &args.mountpoint)?)?),
    }
    let further = options.flags.difference(MountFlags::RDONLY);
    if further.is_empty() { Ok(()) } else { remount(&args.mountpoint, options.flags) }
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
