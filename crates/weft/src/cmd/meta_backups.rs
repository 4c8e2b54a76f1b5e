//! `weft meta backups list`: the metadata backups in a folder.

use crate::cli::BackupsListArgs;
use crate::output::{Align, format_age, os_error, show, table};
use crate::size::format_size;
use backup::Chain;
use mgmt::StatePaths;
use serde::Serialize;
use std::path::PathBuf;
use types::{Errno, Error, Result, Timestamp};

/// A backup.
#[derive(Serialize)]
struct BackupOutput {
    file: String,
    bytes: u64,
    /// Point in time of its content, in seconds since 1970.
    created_s: Option<i64>,
    age_s: Option<i64>,
    id: Option<String>,
    /// The backup that it builds on.
    base: Option<String>,
    cluster: Option<String>,
    /// Why it is unusable; with `--verify` all of it was read.
    fault: Option<String>,
}

/// Lists the backups, newest last.
pub fn run(args: &BackupsListArgs) -> Result<()> {
    let folder: PathBuf = match &args.folder {
        Some(folder) => folder.clone(),
        None => StatePaths::new(&args.query.dir.directory()?).backups(),
    };
    if args.folder.is_some() && !folder.is_dir() {
        return Err(Error::new(Errno::ENOENT, format!("{} is not a folder", folder.display())));
    }
    let folder = std::path::absolute(&folder).map_err(|e| os_error(folder.display(), &e))?;
    let now_s = rt::now().secs;
    let entries = backup::list(&folder)?;
    let listed: Vec<BackupOutput> =
        entries.into_iter().map(|entry| listed(entry, now_s, args.verify)).collect();
    show(args.query.json, &listed, || match listed.is_empty() {
        true => format!("there are no backups in {}\n", folder.display()),
        false => screen(&listed),
    })
}

fn listed(entry: backup::BackupFile, now_s: i64, verify: bool) -> BackupOutput {
    let (head, fault) = match entry.header {
        Ok(head) => {
            let chain = Chain::find(&entry.path);
            let checked =
                if verify { chain.and_then(|chain| chain.verify().map(drop)) } else { chain.map(drop) };
            (Some(head), checked.err())
        }
        Err(error) => (None, Some(error)),
    };
    BackupOutput {
        file: entry.path.display().to_string(),
        bytes: entry.bytes,
        created_s: head.as_ref().map(|head| head.created_s),
        age_s: head.as_ref().map(|head| now_s.saturating_sub(head.created_s)),
        id: head.as_ref().map(|head| head.id.clone()),
        base: head.as_ref().and_then(|head| head.base.clone()),
        cluster: head.map(|head| head.cluster),
        fault: fault.map(|error| error.to_string()),
    }
}

fn screen(listed: &[BackupOutput]) -> String {
    let row = |copy: &BackupOutput| {
        let kind = match (&copy.id, &copy.base) {
            (None, _) => "-",
            (_, None) => "full",
            (_, Some(_)) => "incremental",
        };
        [
            copy.created_s.map_or_else(|| "-".into(), |s| Timestamp::new(s, 0).compact_utc()),
            copy.age_s.map_or_else(|| "-".into(), format_age),
            kind.into(),
            format_size(copy.bytes),
            copy.fault.clone().unwrap_or_else(|| "usable".into()),
            copy.file.clone(),
        ]
    };
    let heading = [
        ("MOMENT", Align::Left),
        ("AGE", Align::Right),
        ("KIND", Align::Left),
        ("SIZE", Align::Right),
        ("STATE", Align::Left),
        ("FILE", Align::Left),
    ];
    table(heading, &listed.iter().map(row).collect::<Vec<_>>())
}
