//! `weft rm`: removes files, and trees of them.

use super::{Run, count, shown};
use crate::cli::RmArgs;
use crate::exit::{ArgumentCheck, Exit, Outcome};
use crate::output::print_json;
use crate::progress::print_step;
use serde_json::json;
use std::path::Path;
use std::sync::atomic::Ordering;
use tree::{Refusal, RemoveCounts, RemoveOptions, removal_refusal};
use types::{Errno, Error, Result};

/// Removes.
pub fn run(args: &RmArgs) -> Outcome {
    // Nothing is removed if one of the paths is refused.
    args.paths.iter().try_for_each(|path| check(path, args.recursive)).or_usage()?;
    let run = Run::start("removing", args.json)?;
    let options = RemoveOptions { recursive: args.recursive, force: args.force };
    let counts = RemoveCounts::default();
    let report = run.reporter();
    let remove = || args.paths.iter().for_each(|path| tree::remove(path, options, &counts, run.job(&report)));
    run.work("removing", || counts.removed(), remove);
    let (files, directories) =
        (counts.files.load(Ordering::Relaxed), counts.directories.load(Ordering::Relaxed));
    if args.json {
        print_json(&run.document(json!({ "files": files, "directories": directories })))?;
    }
    let done = format!("{} and {} have been removed", count(files, "file"), count(directories, "directory"));
    run.outcome("removed", &done, "the same command removes the rest")?;
    print_step(&format!("{done} in {:.1} s\n", run.began.elapsed().as_secs_f64()));
    Ok(Exit::Success)
}

/// Refuses a path that must not be removed.
fn check(path: &Path, is_recursive: bool) -> Result<()> {
    let refuse = |cause: &str, hint: &str| {
        let message = format!("{} is not removed: {cause}", shown(path));
        Err(Error::new(Errno::EINVAL, message).hint(hint.to_string()))
    };
    match removal_refusal(path) {
        Some(Refusal::NoPath) => refuse("it is empty or contains a NUL byte", "give the path of a file"),
        Some(Refusal::DotDirectory) => refuse("it is . or ..", "name the directory from the one above it"),
        Some(Refusal::RootDirectory) => refuse("it is the root directory", "name the directories to remove"),
        Some(Refusal::MountPoint) => {
            refuse("a file system is mounted there", "name what is in it, or unmount it (weft umount)")
        }
        None if !is_recursive && path.symlink_metadata().is_ok_and(|found| found.is_dir()) => {
            refuse("it is a directory", "-r removes directories and what is below them")
        }
        None => Ok(()),
    }
}
