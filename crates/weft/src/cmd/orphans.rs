//! `weft fsck --orphans`: orphaned chunk files that repairs have moved aside, and copies of those
//! that they have cut.
//!
//! A chunk file is restored only while no process serves its target: a client could create one of
//! the same name at that moment.

use crate::cli::OrphansArg;
use crate::node_config::{self, NodeConfig};
use crate::output::{Align, os_error, show, table};
use crate::size::format_size;
use chunkstore::Orphan;
use mgmt::{StatePaths, TargetList, lock_target};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// The file that makes a directory a target.
const SUPERBLOCK: &str = "target.toml";

/// A chunk file that was moved aside, and the outcome for it.
#[derive(Serialize)]
struct OrphanInfo {
    /// Directory of the target.
    target: PathBuf,
    group: Option<u32>,
    ino: u64,
    bytes: u64,
    /// Outcome, or the reason why it is still there.
    state: String,
}

/// Lists, restores or deletes orphans on the targets of a state directory.
pub fn run(dir: &Path, what: OrphansArg, json: bool) -> Result<()> {
    let targets = targets(dir)?;
    require_targets(&targets)?;
    let all = rt::block_on(process_targets(targets, what)).map_err(|e| os_error("io_uring", &e))??;
    show(json, &all, || screen(&all))
}

/// Refuses directories without a target: an empty directory says nothing about the target's
/// orphans.
fn require_targets(targets: &[PathBuf]) -> Result<()> {
    let Some(missing) = targets.iter().find(|target| !target.join(SUPERBLOCK).is_file()) else {
        return Ok(());
    };
    let shown = missing.display();
    Err(Error::new(Errno::ENOENT, format!("{shown} should contain a target, but {SUPERBLOCK} is missing"))
        .hint(format!("findmnt --target {shown} shows what is mounted there: mount its disk, and try again")))
}

/// Returns the directories of the targets on this machine.
fn targets(dir: &Path) -> Result<Vec<PathBuf>> {
    if node_config::is_node(dir) {
        // A target that the next start will create has no orphans.
        let made = NodeConfig::read(dir)?.targets.into_iter().filter(|target| !target.new);
        return Ok(made.map(|target| target.path).collect());
    }
    let list = TargetList::read(&StatePaths::new(dir))?;
    let own = |list: TargetList| list.targets().map(|(_, path)| path.to_path_buf()).collect();
    Ok(list.map(own).unwrap_or_default())
}

async fn process_targets(targets: Vec<PathBuf>, what: OrphansArg) -> Result<Vec<OrphanInfo>> {
    let mut all = Vec::new();
    for target in targets {
        process_target(&target, what, &mut all).await?;
    }
    Ok(all)
}

async fn process_target(target: &Path, what: OrphansArg, all: &mut Vec<OrphanInfo>) -> Result<()> {
    let failed = |e| os_error(target.display(), &e);
    let is_restored = matches!(what, OrphansArg::Restore);
    let _target_lock = is_restored.then(|| lock_target(target).map_err(in_use)).transpose()?;
    for orphan in Orphan::list(target).await.map_err(failed)? {
        let state: String = match what {
            OrphansArg::List => "kept".into(),
            OrphansArg::Delete => {
                orphan.delete(target).await.map_err(failed)?;
                "deleted".into()
            }
            OrphansArg::Restore => match orphan.restore(target).await.map_err(failed)? {
                true => "restored".into(),
                false => restore_conflict(&orphan, target).await.map_err(failed)?,
            },
        };
        let group = orphan.group.map(|group| group.0);
        all.push(OrphanInfo { target: target.into(), group, ino: orphan.ino.0, bytes: orphan.bytes, state });
    }
    Ok(())
}

/// Returns why an orphan isn't restored.
async fn restore_conflict(orphan: &Orphan, target: &Path) -> io::Result<String> {
    let Some((place, bytes)) = orphan.current_chunk_file(target).await? else {
        return Ok(
            "kept: other checksums are in its place, or its group isn't on this target any more".into()
        );
    };
    let other = match orphan.bytes > bytes {
        true => "it is longer than, and differs from,",
        false => "it differs from",
    };
    let kept = orphan.path(target);
    let (kept, place) = (kept.display(), place.display());
    Ok(format!("kept: {other} the chunk file of {bytes} bytes in its place: cmp {kept} {place} shows where"))
}

fn in_use(error: mgmt::Error) -> Error {
    let is_served = matches!(error, mgmt::Error::TargetInUse { .. });
    let error = Error::from(error);
    match is_served {
        true => error.hint("weft down --dir DIR stops it; restore the chunk files, and start it again"),
        false => error,
    }
}

fn screen(all: &[OrphanInfo]) -> String {
    if all.is_empty() {
        return "nothing was moved aside\n".into();
    }
    let row = |orphan: &OrphanInfo| {
        let group = orphan.group.map_or("-".into(), |group| group.to_string());
        let name = format!("{:016x}", orphan.ino);
        let bytes = format_size(orphan.bytes);
        [orphan.target.display().to_string(), group, name, bytes, orphan.state.clone()]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(target: &Path, what: OrphansArg) -> Result<usize> {
        let all = rt::block_on(process_targets(vec![target.to_path_buf()], what)).unwrap();
        all.map(|all| all.len())
    }

    #[test]
    fn a_target_whose_disk_is_missing_is_not_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let targets = [dir.path().to_path_buf()];
        let refused = require_targets(&targets).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOENT);
        assert!(refused.message.contains(&*dir.path().to_string_lossy()), "{refused}");
        std::fs::write(dir.path().join(SUPERBLOCK), "").unwrap();
        require_targets(&targets).unwrap();
    }

    #[test]
    fn nothing_is_put_back_while_a_process_serves_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let served = lock_target(dir.path()).unwrap();
        let refused = seen(dir.path(), OrphansArg::Restore).unwrap_err();
        assert!(refused.errno == Errno::EBUSY && refused.hint.contains("weft down"), "{refused}");
        assert_eq!(seen(dir.path(), OrphansArg::List), Ok(0));
        drop(served);
        assert_eq!(seen(dir.path(), OrphansArg::Restore), Ok(0));
    }

    #[test]
    fn an_orphan_replaces_its_truncated_chunk_file_and_conflicts_with_another() {
        let dir = tempfile::tempdir().unwrap();
        let orphan = Orphan { group: None, ino: types::ChunkFileId(1), bytes: 20 };
        let (kept, place) = (orphan.path(dir.path()), dir.path().join("chunks/05/e5/0000000000000001"));
        for file in [&kept, &place] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        let content = "what it was before it was cut";
        std::fs::write(&kept, content).unwrap();
        let state = |in_place: &str| {
            std::fs::write(&place, in_place).unwrap();
            let all = process_targets(vec![dir.path().to_path_buf()], OrphansArg::Restore);
            rt::block_on(all).unwrap().unwrap().remove(0).state
        };
        let other = state("another one");
        let cmp = format!("cmp {} {}", kept.display(), place.display());
        assert!(other.contains("is longer") && other.contains("11 bytes") && other.contains(&cmp), "{other}");
        let longer = state(&content.repeat(2));
        assert!(longer.contains("it differs") && longer.contains("58 bytes"), "{longer}");
        assert!(kept.exists());
        assert_eq!(state(&content[..12]), "restored");
        assert!(!kept.exists() && std::fs::read_to_string(&place).unwrap() == content);
    }
}
