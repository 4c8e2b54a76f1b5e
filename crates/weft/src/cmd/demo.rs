//! `weft demo`: copies a tree to a mount, builds a program there, reads everything back, compares.

use crate::cli::DemoArgs;
use crate::exit::{ArgumentCheck, Exit, Outcome};
use crate::mountpoint::{all_mounts, containing_mount};
use crate::output::{os_error, print};
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result};

/// Runs the command.
pub fn run(args: &DemoArgs) -> Outcome {
    let folder = folder(args.folder.as_deref()).or_usage()?;
    if let Some(source) = args.source.as_deref().filter(|source| !source.is_dir()) {
        let message = format!("{} is not a directory", source.display());
        return Err(Error::new(Errno::ENOTDIR, message).hint("--source names a tree to copy")).or_usage();
    }
    // A name of its own: the demonstration must not touch files that exist.
    let place = folder.join(format!("weft-demo-{}", std::process::id()));
    std::fs::create_dir(&place).map_err(|e| os_error(place.display(), &e))?;
    // After a failure the files stay: they show its cause.
    demo::run(&place, args.source.as_deref(), &mut |line| print(&format!("{line}\n")))
        .map_err(|e| failed(&place, &e))?;
    let kept = if args.keep {
        format!("; they are in {}", place.display())
    } else {
        std::fs::remove_dir_all(&place).map_err(|e| os_error(place.display(), &e))?;
        String::new()
    };
    print(&format!("all files have the content that was written{kept}\n"));
    Ok(Exit::Success)
}

fn failed(place: &Path, cause: &std::io::Error) -> Error {
    let errno = cause.raw_os_error().map_or(Errno::EIO, Errno::Number);
    Error::new(errno, format!("the demonstration in {} failed: {cause}", place.display()))
        .hint("weft health shows problems of the cluster; the files are still there")
}

/// Returns the folder to use, which is on a weft mount.
fn folder(given: Option<&Path>) -> Result<PathBuf> {
    let hint = "weft up --mount mnt --detach starts a cluster and mounts it";
    if let Some(folder) = given {
        return match containing_mount(folder)? {
            Some(_) => Ok(folder.to_path_buf()),
            None => {
                let message = format!("{} is not on a weft mount", folder.display());
                Err(Error::new(Errno::EINVAL, message).hint(hint))
            }
        };
    }
    if containing_mount(Path::new("."))?.is_some() {
        return Ok(PathBuf::from("."));
    }
    let mounts: Vec<PathBuf> =
        all_mounts()?.into_iter().filter(|mount| mount.is_weft).map(|mount| mount.at).collect();
    match &mounts[..] {
        [] => Err(Error::new(Errno::ENOENT, "no weft file system is mounted here").hint(hint)),
        [only] => Ok(only.clone()),
        [first, ..] => {
            let all: Vec<String> = mounts.iter().map(|mount| mount.display().to_string()).collect();
            let message = format!("several weft file systems are mounted: {}", all.join(", "));
            Err(Error::new(Errno::EINVAL, message).hint(format!("weft demo {}", first.display())))
        }
    }
}
