//! `weft down`: unmount and stop.

use crate::cli::DownArgs;
use crate::control::Control;
use crate::output::print;
use std::time::Duration;
use types::Result;

/// Stops the cluster; one that is down already is no error.
pub fn run(args: &DownArgs) -> Result<()> {
    let dir = args.dir.display();
    match Control::connect(&args.dir)? {
        Some(control) => {
            let stopped = control.stop(Duration::from_secs(args.timeout))?;
            print(&format!("stopped the cluster in {dir} (process {})\n", stopped.pid));
        }
        None => print(&format!("the cluster in {dir} is not running\n")),
    }
    Ok(())
}
