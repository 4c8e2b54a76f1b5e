//! `weft cp`: copies files, and trees of them.

use super::{Run, count, shown};
use crate::cli::CpArgs;
use crate::exit::{ArgumentCheck, Exit, Outcome};
use crate::output::{os_error, print_json};
use crate::progress::print_step;
use crate::size::format_size;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tree::{CopyCounts, CopyOptions};
use types::{Errno, Error, Result};

/// Copies.
pub fn run(args: &CpArgs) -> Outcome {
    let options = CopyOptions { recursive: args.recursive || args.archive, archive: args.archive };
    // Nothing is copied if one of the paths is refused.
    let copies = destinations(&args.paths, options.recursive).or_usage()?;
    let run = Run::start("copying", args.json)?;
    let counts = CopyCounts::default();
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let report = run.reporter();
    let copy =
        || copies.iter().for_each(|(from, to)| tree::copy(from, to, options, &counts, run.job(&report)));
    run.work("copying", || value(&counts.files) + value(&counts.directories), copy);
    let (files, directories, bytes) =
        (value(&counts.files), value(&counts.directories), value(&counts.bytes));
    if args.json {
        let document = json!({ "files": files, "directories": directories, "bytes": bytes });
        print_json(&run.document(document))?;
    }
    let (files, directories) = (count(files, "file"), count(directories, "directory"));
    let done = format!("{files} and {directories} with {} have been copied", format_size(bytes));
    run.outcome("copied", &done, "the same command copies all of them again")?;
    print_step(&format!("{done} in {:.1} s\n", run.began.elapsed().as_secs_f64()));
    Ok(Exit::Success)
}

/// Returns each source with its destination.
fn destinations(paths: &[PathBuf], is_recursive: bool) -> Result<Vec<(PathBuf, PathBuf)>> {
    let [sources @ .., to] = paths else { return Err(wrong("no destination is given", "name it last")) };
    let is_into = to.is_dir();
    if sources.len() > 1 && !is_into {
        let message = format!("{} is not a directory, and there are several sources", shown(to));
        return Err(wrong(&message, "create it (mkdir), or name one source"));
    }
    let mut copies: Vec<(PathBuf, PathBuf)> = Vec::new();
    for from in sources {
        let found = from.symlink_metadata().map_err(|error| {
            os_error(format_args!("can't copy {}", shown(from)), &error)
                .hint("nothing was copied: the paths before the last one are what is copied")
        })?;
        if found.is_dir() && !is_recursive {
            let message = format!("{} is not copied: it is a directory", shown(from));
            return Err(wrong(&message, "-r copies directories and what is below them"));
        }
        let target = if is_into { destination_in(to, from)? } else { to.clone() };
        if copies.iter().any(|(_, other)| *other == target) {
            let message = format!("two sources would become {}", shown(&target));
            return Err(wrong(&message, "copy them one after the other, to different names"));
        }
        copies.push((from.clone(), target));
    }
    Ok(copies)
}

/// Returns what a source becomes in a directory. The content of `.` goes into the directory itself.
fn destination_in(dir: &Path, from: &Path) -> Result<PathBuf> {
    let bytes = from.as_os_str().as_bytes();
    if bytes == b"." || bytes.ends_with(b"/.") {
        return Ok(dir.to_path_buf());
    }
    from.file_name().map(|name| dir.join(name)).ok_or_else(|| {
        wrong(
            &format!("{} is not copied: it has no name", shown(from)),
            "name a destination that doesn't exist",
        )
    })
}

fn wrong(message: &str, hint: &str) -> Error {
    Error::new(Errno::EINVAL, message.to_string()).hint(hint.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn destinations_are_those_of_cp() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("into")).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("f"), b"").unwrap();
        let of = |paths: &[&str]| destinations(&paths.iter().map(|path| at(path)).collect::<Vec<_>>(), true);
        assert_eq!(of(&["f", "g"]).unwrap(), [(at("f"), at("g"))]);
        assert_eq!(of(&["f", "d/", "into"]).unwrap(), [(at("f"), at("into/f")), (at("d/"), at("into/d"))]);
        assert_eq!(of(&["d/.", "into"]).unwrap(), [(at("d/."), at("into"))]);
        for (paths, object) in [
            (&["f", "d", "g"][..], "/g is not a directory"),
            (&["gone", "into"], "/gone: no such file"),
            (&["f", "f", "into"], "two sources"),
            (&["d/..", "into"], "has no name"),
        ] {
            let error = of(paths).unwrap_err();
            assert!(error.message.contains(object), "{paths:?}: {error}");
        }
        let error = destinations(&[at("d"), at("new")], false).unwrap_err();
        assert!(error.message.contains("is a directory"), "{error}");
    }
}
