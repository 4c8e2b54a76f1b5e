//! `weft serve`: runs the services of a node.

use super::status::screen;
use crate::assembly::NodeProcess;
use crate::cli::ServeArgs;
use crate::node_config::{NodeConfig, no_node_error};
use crate::output::{os_error, print};
use crate::{detach, logging, numa, systemd};
use mgmt::StateDir;
use types::Result;

/// Serves, in the foreground or in the background.
pub fn run(args: &ServeArgs) -> Result<()> {
    let dir = args.dir.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => no_node_error(&args.dir),
        _ => os_error(args.dir.display(), &e),
    })?;
    let args = ServeArgs { dir, ..args.clone() };
    if args.detached {
        return in_background(&args);
    }
    if args.detach {
        let log = logging::of_service(&args.dir);
        let half = ServeArgs { detach: false, detached: true, ..args };
        let status = detach::spawn(&half.to_arguments(), &log)?;
        print(&screen(&status));
        return Ok(());
    }
    let node = start(&args, |_| ())?;
    print(&screen(&node.status()));
    systemd::notify_ready("serving");
    node.serve()
}

fn in_background(args: &ServeArgs) -> Result<()> {
    let starter = detach::leave_terminal()?;
    match start(args, |state| logging::redirect_service(state.paths.root())) {
        Ok(node) => {
            starter.report(Ok(node.status()))?;
            node.serve()
        }
        Err(error) => {
            tracing::error!(hint = &*error.hint, "not started: {error}");
            // The parent process prints it.
            starter.report(Err(error))?;
            std::process::exit(1)
        }
    }
}

fn start(args: &ServeArgs, opened: impl FnOnce(&StateDir)) -> Result<NodeProcess> {
    logging::init();
    let mut config = NodeConfig::read(&args.dir)?;
    config.numa = args.numa.or(config.numa);
    // Before any thread is started: new threads inherit the binding.
    config.numa.map_or(Ok(()), numa::bind)?;
    let state = StateDir::open(&args.dir)?;
    opened(&state);
    NodeProcess::start(state, config)
}
