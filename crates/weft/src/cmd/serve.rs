//! `weft serve`: runs the services of a node.

use super::status::screen;
use crate::assembly::NodeProcess;
use crate::cli::{DirOption, ServeArgs};
use crate::node_config::NodeConfig;
use crate::output::{os_error, print};
use crate::{detach, logging, numa, systemd};
use mgmt::StateDir;
use std::cell::Cell;
use std::path::Path;
use types::Result;

/// Serves, in the foreground or in the background.
pub fn run(args: &ServeArgs) -> Result<()> {
    let dir = args.dir.find()?;
    let dir = dir.canonicalize().map_err(|e| os_error(dir.display(), &e))?;
    let args = ServeArgs { dir: DirOption::at(&dir), ..args.clone() };
    if args.detached {
        return in_background(&args, &dir);
    }
    if args.detach {
        let log = logging::of_service(&dir);
        let half = ServeArgs { detach: false, detached: true, ..args };
        let status = detach::spawn(&half.to_arguments(), &log)?;
        print(&screen(&status));
        return Ok(());
    }
    let node = start(&args, &dir, |_| ())?;
    print(&screen(&node.status()));
    systemd::notify_ready("serving");
    node.serve()
}

fn in_background(args: &ServeArgs, dir: &Path) -> Result<()> {
    let starter = detach::leave_terminal()?;
    let has_log = Cell::new(false);
    let opened = |state: &StateDir| {
        logging::redirect_service(state.paths.root());
        has_log.set(true);
    };
    match start(args, dir, opened) {
        Ok(node) => {
            starter.report(Ok(node.status()))?;
            node.serve()
        }
        Err(error) => starter.fail("not started", error, has_log.get()),
    }
}

fn start(args: &ServeArgs, dir: &Path, opened: impl FnOnce(&StateDir)) -> Result<NodeProcess> {
    logging::init();
    let mut config = NodeConfig::read(dir)?;
    config.numa = args.numa.or(config.numa);
    // Before any thread is started: new threads inherit the binding.
    config.numa.map_or(Ok(()), numa::bind)?;
    let state = StateDir::open(dir)?;
    opened(&state);
    NodeProcess::start(state, config)
}
