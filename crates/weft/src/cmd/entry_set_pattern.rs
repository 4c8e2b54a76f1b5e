//! `weft entry set-pattern`: changes the stripe pattern that a directory gives new files.

use super::entry_info::{read_entry_info, xattr_error};
use crate::cli::{PatternArgs, SetPatternArgs, value_name};
use crate::control::{PoolStatus, Request};
use crate::discovery::Place;
use crate::output::{print, print_json};
use rustix::fs::XattrFlags;
use serde_json::{Map, Value, json};
use types::{Errno, Error, Result};

/// Extended attribute through which the mount accepts changes.
const ATTRIBUTE: &str = "weft.pattern";

/// Changes the pattern and shows the result.
pub fn run(args: &SetPatternArgs) -> Result<()> {
    let change = change_of(&args.change).to_string();
    rustix::fs::setxattr(&args.dir, ATTRIBUTE, change.as_bytes(), XattrFlags::empty())
        .map_err(|e| refused(args, e))?;
    let entry = read_entry_info(&args.dir)?;
    if args.json {
        return print_json(&entry["pattern"]);
    }
    let pattern: Map<String, Value> = entry["pattern"].as_object().cloned().unwrap_or_default();
    let words = pattern.iter().map(|(name, value)| match value {
        Value::String(word) => format!("{name} {word}"),
        other => format!("{name} {other}"),
    });
    print(&format!("{}: new files get {}\n", args.dir.display(), words.collect::<Vec<_>>().join(", ")));
    Ok(())
}

/// Returns only the fields to change.
fn change_of(args: &PatternArgs) -> Value {
    let fields = [
        ("pool", args.pool.as_ref().map(|v| json!(v))),
        ("scheme", args.scheme.map(|v| json!(v))),
        ("chunk_size", args.chunk_size.map(|v| json!(v))),
        ("stripe_count", args.stripe_count.map(|v| json!(v))),
        ("inline_limit", args.inline_limit.map(|v| json!(v))),
        ("chooser", args.chooser.map(|v| json!(value_name(v)))),
    ];
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_string(), value?)))
        .collect::<Map<_, _>>()
        .into()
}

/// Explains an error: the kernel returns only its number.
fn refused(args: &SetPatternArgs, cause: rustix::io::Errno) -> Error {
    let dir = args.dir.display();
    match Errno::Number(cause.raw_os_error()) {
        Errno::EINVAL => unknown_pool(args).unwrap_or_else(|| {
            Error::new(Errno::EINVAL, format!("the pattern for {dir} is not valid")).hint(
                "chunk size: a power of two from 64K to 64M; inline limit: at most 64K; weft pool list shows pools",
            )
        }),
        Errno::ENODEV => {
            let scheme = args.change.scheme.map_or_else(|| "that scheme".into(), |scheme| scheme.to_string());
            Error::new(Errno::ENODEV, format!("the pool of {dir} has no groups of {scheme}, and they can't be created"))
                .hint("it may have too few targets (weft target add); weft group create --pool P --scheme S shows why")
        }
        Errno::ENOTDIR => Error::new(Errno::ENOTDIR, format!("{dir} is not a directory"))
            .hint("patterns belong to directories; a file keeps the one it was created with"),
        Errno::EPERM | Errno::EACCES => {
            Error::new(Errno::EPERM, format!("not permitted to set the pattern of {dir}"))
                .hint("its owner and root may")
        }
        _ => xattr_error(&args.dir, cause),
    }
}

/// Returns the error for a pool that doesn't exist, if that is the cause and the mount can tell.
fn unknown_pool(args: &SetPatternArgs) -> Option<Error> {
    let wanted = args.change.pool.as_deref()?;
    let dir = args.dir.canonicalize().ok()?;
    let pools: Vec<PoolStatus> = Place::find(Some(&dir)).ok()?.ask(Request::Pools).ok()?;
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    (!names.contains(&wanted)).then(|| no_pool(wanted, &names))
}

fn no_pool(wanted: &str, names: &[&str]) -> Error {
    Error::new(Errno::ENOENT, format!("there is no pool {wanted}; the pools are {}", names.join(", ")))
        .hint(format!("weft target add PATH --pool {wanted}, on a node, makes a target of such a pool"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Chooser;

    #[test]
    fn a_pool_that_does_not_exist_is_named_with_those_that_do() {
        let error = no_pool("nopool", &["default", "nvme"]);
        assert_eq!(error.message, "there is no pool nopool; the pools are default, nvme");
    }

    #[test]
    fn only_what_is_given_is_changed() {
        let none = PatternArgs {
            pool: None,
            scheme: None,
            chunk_size: None,
            stripe_count: None,
            inline_limit: None,
            chooser: None,
        };
        let mirrored = PatternArgs { scheme: Some(types::Scheme::Mirror(2)), ..none };
        assert_eq!(change_of(&mirrored), json!({ "scheme": "mirror:2" }));
        let none = PatternArgs { scheme: None, ..mirrored };
        let some = PatternArgs { chunk_size: Some(65536), chooser: Some(Chooser::RoundRobin), ..none };
        assert_eq!(change_of(&some), json!({ "chunk_size": 65536, "chooser": "round-robin" }));
    }
}
