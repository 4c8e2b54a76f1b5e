//! `weft fsck --orphans`: chunk files of no file that repairs have moved aside.

use crate::cli::OrphansArg;
use crate::node_config::{self, NodeConfig};
use crate::output::{Align, os_error, show, table};
use crate::size::format_size;
use chunkstore::Orphan;
use mgmt::{StatePaths, TargetList};
use serde::Serialize;
use std::path::{Path, PathBuf};
use types::Result;

/// A chunk file that was moved aside, and what became of it.
#[derive(Serialize)]
struct Told {
    /// Directory of the target.
    target: PathBuf,
    group: Option<u32>,
    ino: u64,
    bytes: u64,
    /// Why it is still there.
    state: &'static str,
}

/// Lists, puts back or deletes what is on the targets of a state directory.
pub fn run(dir: &Path, what: OrphansArg, json: bool) -> Result<()> {
    let all = rt::block_on(see_to_all(targets(dir)?, what)).map_err(|e| os_error("io_uring", &e))??;
    show(json, &all, || screen(&all))
}

/// Directories of the targets that are on this machine.
fn targets(dir: &Path) -> Result<Vec<PathBuf>> {
    if node_config::is_node(dir) {
        return Ok(NodeConfig::read(dir)?.targets.into_iter().map(|target| target.path).collect());
    }
    let list = TargetList::read(&StatePaths::new(dir))?;
    let own = |list: TargetList| list.targets().map(|(_, path)| path.to_path_buf()).collect();
    Ok(list.map(own).unwrap_or_default())
}

async fn see_to_all(targets: Vec<PathBuf>, what: OrphansArg) -> Result<Vec<Told>> {
    let mut all = Vec::new();
    for target in targets {
        see_to(&target, what, &mut all).await?;
    }
    Ok(all)
}

async fn see_to(target: &Path, what: OrphansArg, all: &mut Vec<Told>) -> Result<()> {
    let failed = |e| os_error(target.display(), &e);
    for orphan in Orphan::list(target).await.map_err(failed)? {
        let state = match what {
            OrphansArg::List => "kept",
            OrphansArg::Delete => {
                orphan.delete(target).await.map_err(failed)?;
                "deleted"
            }
            OrphansArg::Restore => match orphan.put_back(target).await.map_err(failed)? {
                true => "restored",
                false => "kept: another chunk file has its place, or its group is not here any more",
            },
        };
        let group = orphan.group.map(|group| group.0);
        all.push(Told { target: target.into(), group, ino: orphan.ino.0, bytes: orphan.bytes, state });
    }
    Ok(())
}

fn screen(all: &[Told]) -> String {
    if all.is_empty() {
        return "nothing was moved aside\n".into();
    }
    let row = |told: &Told| {
        let group = told.group.map_or("-".into(), |group| group.to_string());
        let name = format!("{:016x}", told.ino);
        let bytes = format_size(told.bytes);
        [told.target.display().to_string(), group, name, bytes, told.state.to_string()]
    };
    let rows: Vec<[String; 5]> = all.iter().map(row).collect();
    let heading = [
        ("TARGET", Align::Left),
        ("GROUP", Align::Left),
        ("CHUNK FILE", Align::Left),
        ("SIZE", Align::Right),
        ("STATE", Align::Left),
    ];
    table(heading, &rows)
}
