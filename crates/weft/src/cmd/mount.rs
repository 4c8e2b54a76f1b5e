//! `weft mount`.

use crate::assembly::{MountProcess, unreachable};
use crate::cli::MountArgs;
use crate::node_config::ClusterFile;
use crate::output::os_error;
use crate::{detach, logging, mountpoint};
use std::path::Path;
use types::Result;

/// Mounts, and returns when that is done unless `--foreground`.
pub fn run(args: &MountArgs) -> Result<()> {
    let args = absolute(args)?;
    if args.foreground && !args.detached {
        return start(&args, || ())?.serve();
    }
    let log = args.log.clone().unwrap_or_else(|| logging::of_mount(&args.mountpoint));
    if args.detached {
        return in_background(&args, &log);
    }
    // Refusals that need no other process are told by this one.
    ClusterFile::read(&args.cluster)?;
    detach::spawn_quiet(&MountArgs { detached: true, ..args }.to_arguments(), &log)
}

fn in_background(args: &MountArgs, log: &Path) -> Result<()> {
    let starter = detach::leave_terminal()?;
    match start(args, || logging::redirect(log)) {
        Ok(mount) => {
            starter.report_done()?;
            mount.serve()
        }
        Err(error) => {
            tracing::error!(hint = &*error.hint, "not mounted: {error}");
            // The starter prints it.
            starter.report(Err(error))?;
            std::process::exit(1)
        }
    }
}

fn start(args: &MountArgs, ready: impl FnOnce()) -> Result<MountProcess> {
    logging::init();
    let file = ClusterFile::read(&args.cluster)?;
    mountpoint::prepare(&args.mountpoint)?;
    ready();
    MountProcess::start(args, file.clone()).map_err(|error| unreachable(&file, error))
}

/// The same with paths from the root directory: the process leaves its working directory.
fn absolute(args: &MountArgs) -> Result<MountArgs> {
    let cluster = args.cluster.canonicalize().map_err(|e| {
        os_error(format_args!("cluster file {}", args.cluster.display()), &e)
            .hint("weft cluster token --client prints one, on the management node")
    })?;
    let mountpoint = mountpoint::resolve(&args.mountpoint)?;
    let log = args.log.as_ref().map(std::path::absolute).transpose();
    let log = log.map_err(|e| os_error("the log file", &e))?;
    Ok(MountArgs { cluster, mountpoint, log, ..args.clone() })
}
