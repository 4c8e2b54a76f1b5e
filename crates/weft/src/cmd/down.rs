//! `weft down`: unmount and stop.

use crate::cli::DownArgs;
use crate::control::{Control, not_running};
use crate::node_config;
use crate::output::print;
use crate::progress::Progress;
use std::time::Duration;
use types::Result;

/// Stops the cluster, and waits until it has ended.
pub fn run(args: &DownArgs) -> Result<()> {
    let dir = args.dir.find()?;
    let Some(control) = Control::connect(&dir)? else { return Err(not_running(&dir)) };
    let what = if node_config::is_node(&dir) { "node" } else { "cluster" };
    let progress = Progress::start(&format!("waiting until the {what} has stopped"));
    let stopped = control.stop(Duration::from_secs(args.timeout))?;
    drop(progress);
    print(&format!("stopped the {what} in {} (process {})\n", dir.display(), stopped.pid));
    Ok(())
}
