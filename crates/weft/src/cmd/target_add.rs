//! `weft target add`: takes effect now if the node runs, otherwise at its next start.

use crate::cli::TargetAddArgs;
use crate::control::{Control, Request};
use crate::exit::{ArgumentCheck, Failure};
use crate::node_config::{NodeConfig, TargetConfig};
use crate::numa;
use crate::output::{os_error, print, print_json};
use mgmt::{check_name, lock_target, require_target_or_vacant};
use serde::Serialize;
use types::{Errno, Error, Result, Role, TargetId};

#[derive(Serialize)]
struct TargetAddOutput {
    /// `None`: the target gets its id when the node is started.
    target: Option<TargetId>,
    path: std::path::PathBuf,
    pool: String,
    numa: Option<u32>,
}

/// Adds the target.
pub fn run(args: &TargetAddArgs) -> Result<(), Failure> {
    check_name("pool", &args.pool).or_usage()?;
    let dir = args.query.dir.directory()?;
    let config = NodeConfig::read(&dir)?;
    if !config.roles.contains(&Role::Storage) {
        return Err(Error::new(Errno::EINVAL, format!("node {} doesn't have the role storage", config.node))
            .hint("weft node set NODE --roles on the management node, then the same roles in node.toml; or add the target on another node")
            .into());
    }
    let path = match args.path.canonicalize() {
        Ok(path) => path,
        Err(_) => std::path::absolute(&args.path).map_err(|e| os_error(args.path.display(), &e))?,
    };
    require_target_or_vacant(&path)?;
    let target = TargetConfig { path: path.clone(), pool: args.pool.clone(), numa: args.numa, new: true };
    args.numa.map_or(Ok(()), |zone| numa::find(zone).map(drop))?;
    let added = match Control::connect(&dir)? {
        Some(mut control) => Some(control.exchange(Request::AddTarget { target })?),
        None => {
            if path.is_dir() {
                lock_target(&path)?;
            }
            numa::require_same_zone(config.numa, &target)?;
            target.append(&dir)?;
            None
        }
    };
    let (shown, pool) = (path.display(), &args.pool);
    let text = match added {
        Some(id) => format!("{shown} is target {id} of pool {pool}\n"),
        None => format!("{shown} becomes a target of pool {pool} when the node is started\n"),
    };
    if args.query.json {
        return Ok(print_json(&TargetAddOutput {
            target: added,
            path: path.clone(),
            pool: args.pool.clone(),
            numa: args.numa,
        })?);
    }
    print(&text);
    Ok(())
}
