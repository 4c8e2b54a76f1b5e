//! `weft scrub`: background scrubbing.

use super::manage::{ask, change, unexpected_reply};
use super::watch::{self, View};
use crate::cli::{QueryArgs, ScrubCommand};
use crate::output::{Align, format_age, table};
use crate::size::format_size;
use serde::Serialize;
use types::{Result, ScrubSettings};
use wire::mgmt::ScrubProgress;
use wire::{MgmtReply, MgmtRequest};

/// Output of `weft scrub status --json`.
#[derive(Serialize)]
struct Status {
    settings: ScrubSettings,
    targets: Vec<ScrubProgress>,
}

/// Runs the command.
pub fn run(command: ScrubCommand) -> Result<()> {
    match command {
        ScrubCommand::Start(args) => set(&args.query, |settings| {
            settings.asked += 1;
            settings.stopped = false;
            settings.rate = args.rate.or(settings.rate);
        }),
        ScrubCommand::Status(args) => {
            let view = || {
                let status = status(&args.query)?;
                View::new(&status, screen(&status, rt::now().secs))
            };
            watch::show(args.query.json, args.watch, view).map(drop)
        }
        ScrubCommand::Stop(query) => set(&query, |settings| settings.stopped = true),
        ScrubCommand::Resume(query) => set(&query, |settings| settings.stopped = false),
        ScrubCommand::Set(args) => set(&args.query, |settings| {
            settings.every_s = args.every.or(settings.every_s);
            settings.rate = args.rate.or(settings.rate);
        }),
    }
}

fn status(query: &QueryArgs) -> Result<Status> {
    match ask(&query.dir, MgmtRequest::ListScrubs)? {
        MgmtReply::Scrubs { settings, scrubs } => Ok(Status { settings, targets: scrubs }),
        other => Err(unexpected_reply(&other)),
    }
}

fn set(query: &QueryArgs, edit: impl FnOnce(&mut ScrubSettings)) -> Result<()> {
    let mut settings = status(query)?.settings;
    edit(&mut settings);
    change(query, MgmtRequest::SetScrub { settings })
}

fn screen(status: &Status, now_s: i64) -> String {
    let ended = |progress: &ScrubProgress| match progress.ended_s {
        0 => "never".into(),
        ended_s => format!("{} ago", format_age(now_s.saturating_sub(ended_s))),
    };
    let state = |progress: &ScrubProgress| match &progress.hindrance {
        Some(why) => format!("paused: {why}"),
        None if progress.asked < status.settings.asked && !status.settings.stopped => "starting".into(),
        None if !progress.is_running => "idle".into(),
        None if status.settings.stopped => "stopped".into(),
        None => "runs".into(),
    };
    let done = |progress: &ScrubProgress| match progress.bytes_total.filter(|_| progress.is_running) {
        Some(total) => format!("{} of about {}", format_size(progress.bytes_done), format_size(total)),
        None => format_size(progress.bytes_done),
    };
    let row = |progress: &ScrubProgress| {
        [
            progress.target.to_string(),
            state(progress),
            done(progress),
            progress.damaged.to_string(),
            progress.mended.to_string(),
            progress.missing.to_string(),
            ended(progress),
        ]
    };
    let heading = [
        ("TARGET", Align::Right),
        ("STATE", Align::Left),
        ("READ", Align::Left),
        ("DAMAGED", Align::Right),
        ("REPAIRED", Align::Right),
        ("MISSING", Align::Right),
        ("LAST ENDED", Align::Left),
    ];
    table(heading, &status.targets.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::TargetId;

    #[test]
    fn a_target_says_what_it_does_and_what_was_found() {
        let running = ScrubProgress {
            target: TargetId(3),
            is_running: true,
            asked: 1,
            bytes_done: 1 << 20,
            bytes_total: Some(2 << 20),
            damaged: 2,
            mended: 1,
            ..ScrubProgress::default()
        };
        let idle = ScrubProgress { target: TargetId(4), asked: 1, ended_s: 1000, ..ScrubProgress::default() };
        let settings = ScrubSettings { asked: 1, ..ScrubSettings::default() };
        let screen =
            |settings| screen(&Status { settings, targets: vec![running.clone(), idle.clone()] }, 8200);
        let text = screen(settings.clone());
        assert!(
            text.contains("runs") && text.contains("1 MiB of about 2 MiB") && text.contains("never"),
            "{text}"
        );
        assert!(text.contains("idle") && text.contains("2 hours ago"), "{text}");
        assert!(screen(ScrubSettings { stopped: true, ..settings.clone() }).contains("stopped"));
        assert!(screen(ScrubSettings { asked: 2, ..settings }).contains("starting"));
    }
}
