//! `weft find`: lists files, with their attributes.

use super::expression::{Action, Expression};
use super::ls::Lines;
use super::{Output, Run, count};
use crate::cli::FindArgs;
use crate::exit::{ArgumentCheck, Exit, Outcome};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use tree::Found;

/// Lists.
pub fn run(args: &FindArgs) -> Outcome {
    let expression = Expression::parse(&args.words).or_usage()?;
    let run = Run::start("listing", false)?;
    let out = Output::new(&run.stop);
    let lines = Lines::new();
    let files = AtomicU64::new(0);
    let show = |found: &Found<'_>| print(&expression, found, &lines, &out);
    let report = run.reporter();
    run.work(
        "listing",
        || files.load(Ordering::Relaxed),
        || {
            for path in &expression.paths {
                tree::list(path, expression.options, &files, &show, run.job(&report));
            }
        },
    );
    out.end()?;
    let done = format!("{} have been found", count(files.load(Ordering::Relaxed), "file"));
    run.outcome("read", &done, "what was printed is right, but not complete")?;
    Ok(Exit::Success)
}

fn print(expression: &Expression, found: &Found<'_>, lines: &Lines, out: &Output<'_>) -> Result<(), Errno> {
    let mut attributes = None;
    if !expression.matches(found, &mut attributes)? {
        return Ok(());
    }
    let path = found.path();
    match expression.action {
        Action::Print => out.line(&[&out.path(&path)]),
        Action::Print0 => out.record(&[path.as_os_str().as_bytes()], b"\0"),
        Action::List => {
            let attributes = attributes.map_or_else(|| found.attributes(), Ok)?;
            let target = if found.kind.is_symlink() { Some(found.target()?) } else { None };
            let target = target.as_ref().map(|target| target.as_bytes());
            out.line(&[lines.format(&path, &attributes, target).as_bytes()]);
        }
    }
    Ok(())
}
