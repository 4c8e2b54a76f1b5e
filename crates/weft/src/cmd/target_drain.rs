//! `weft target drain`.

use super::manage::{ask, find_target};
use crate::cli::TargetDrainArgs;
use crate::output::{print, print_json};
use crate::progress::{Done, Progress, format_time};
use crate::size::format_size;
use std::time::Duration;
use types::{Errno, Error, Result, TargetId};
use wire::MgmtRequest;
use wire::mgmt::{DrainProgress, TargetInfo};

/// Interval of polls with `--wait`.
const POLL: Duration = Duration::from_secs(1);

/// Starts to drain a target, and waits for the end with `--wait`.
pub fn run(args: &TargetDrainArgs) -> Result<()> {
    let (dir, target) = (&args.query.dir, TargetId(args.target));
    ask(dir, MgmtRequest::SetDrain { target, drain: true })?;
    let shown = args.wait.then(|| Progress::start(&format!("draining target {target}")));
    let info = loop {
        let info = find_target(dir, target)?;
        if !args.wait {
            break info;
        }
        let progress = progress_of(&info)?;
        if progress.empty {
            break info;
        }
        if let Some(stuck) = &progress.stuck {
            return Err(Error::new(Errno::EHOSTDOWN, stuck.clone()).hint(format!(
                "bring it back (weft node list, weft health) and the drain continues; or give up the data that only it has: weft target remove {target} --dry-run lists the files, and weft target remove {target} shows what else is needed"
            )));
        }
        if let Some(shown) = &shown {
            show_progress(shown, target, progress);
        }
        std::thread::sleep(POLL);
    };
    drop(shown);
    let progress = progress_of(&info)?;
    if args.query.json {
        return print_json(&progress);
    }
    print(&format!("target {target}: {}\n", progress_text(progress)));
    Ok(())
}

fn show_progress(shown: &Progress, target: TargetId, progress: &DrainProgress) {
    let DrainProgress { files_left, bytes_left, bytes_moved, groups_left, hindrance, .. } = progress;
    let mut what = match (files_left, groups_left) {
        (Some(files), _) => format!("draining target {target}: {files} files left"),
        (None, 0) => format!("draining target {target}: counting existing data"),
        (None, groups) => format!("draining target {target}: still in {groups} mirrored groups"),
    };
    if let Some(why) = hindrance {
        what += &format!("; {why}");
    }
    let done = match files_left {
        Some(_) => Done::Bytes(*bytes_moved, Some(bytes_moved + bytes_left)),
        None => Done::Unknown,
    };
    shown.update(what, done);
}

fn progress_of(info: &TargetInfo) -> Result<&DrainProgress> {
    info.progress.as_ref().ok_or_else(|| {
        Error::new(Errno::ECANCELED, format!("target {} isn't drained any more", info.target.id))
            .hint("the drain was cancelled (weft target set ID --drain off); moved data stays moved")
    })
}

/// Describes the progress of a drain.
pub fn progress_text(progress: &DrainProgress) -> String {
    if progress.empty {
        return "no new files are placed here, and no data is left".into();
    }
    let groups = match progress.groups_left {
        0 => String::new(),
        1 => "; still in 1 mirrored group".to_string(),
        count => format!("; still in {count} mirrored groups"),
    };
    let Some(files) = progress.files_left else {
        let why = progress.hindrance.as_ref().map_or("counting existing data", |why| why);
        return format!("no new files are placed here{groups}; {why}");
    };
    let mut text = format!(
        "no new files are placed here{groups}; {files} files with {} left, {} with {} moved",
        format_size(progress.bytes_left),
        progress.files_moved,
        format_size(progress.bytes_moved)
    );
    if let Some(seconds) = progress.remaining_s {
        text += &format!("; about {} left at {} a second", format_time(seconds), format_size(progress.rate));
    }
    if let Some(why) = progress.stuck.as_ref().or(progress.hindrance.as_ref()) {
        text += &format!("; {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_with_what_is_left_and_what_is_in_the_way() {
        let progress = DrainProgress {
            files_left: Some(3),
            bytes_left: 5 << 20,
            files_moved: 2,
            bytes_moved: 1 << 20,
            rate: 1 << 20,
            remaining_s: Some(600),
            hindrance: Some("inode 7 can't be moved now".into()),
            ..DrainProgress::default()
        };
        let text = progress_text(&progress);
        for part in ["3 files", "5 MiB", "2 with", "10 min", "inode 7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let member = DrainProgress { groups_left: 3, ..progress.clone() };
        assert!(progress_text(&member).contains("still in 3 mirrored groups"));
        assert!(progress_text(&DrainProgress::default()).contains("counting"));
        assert!(progress_text(&DrainProgress { empty: true, ..progress }).contains("no data"));
    }
}
