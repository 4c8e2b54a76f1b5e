//! `weft group resync`: settings and progress of the resync of group members.

use super::manage::{ask, print_reply, unexpected_reply};
use super::watch::{self, View};
use crate::cli::{NewSetting, QueryArgs, ResyncCommand, ResyncSetArgs};
use crate::output::{Align, table};
use crate::size::format_size;
use serde::Serialize;
use types::{Result, ResyncSettings};
use wire::mgmt::ResyncInfo;
use wire::{MgmtReply, MgmtRequest};

/// Output of `weft group resync status`.
#[derive(Serialize)]
struct Status {
    settings: ResyncSettings,
    members: Vec<ResyncInfo>,
}

/// Runs the command.
pub fn run(command: ResyncCommand) -> Result<()> {
    match command {
        ResyncCommand::Status(args) => {
            let view = || {
                let status = status(&args.query)?;
                View::new(&status, screen(&status))
            };
            watch::show(args.query.json, args.watch, view).map(drop)
        }
        ResyncCommand::Pause(query) => change(&query, |settings| settings.paused = true),
        ResyncCommand::Resume(query) => change(&query, |settings| settings.paused = false),
        ResyncCommand::Set(args) => change(&args.query, |settings| apply(settings, &args)),
    }
}

fn status(query: &QueryArgs) -> Result<Status> {
    match ask(&query.dir, MgmtRequest::ListResyncs)? {
        MgmtReply::Resyncs { settings, members } => Ok(Status { settings, members }),
        other => Err(unexpected_reply(&other)),
    }
}

fn change(query: &QueryArgs, edit: impl FnOnce(&mut ResyncSettings)) -> Result<()> {
    let mut settings = status(query)?.settings;
    edit(&mut settings);
    let reply = ask(&query.dir, MgmtRequest::SetResync { settings })?;
    if query.json { print_reply(&reply) } else { Ok(()) }
}

fn apply(settings: &mut ResyncSettings, args: &ResyncSetArgs) {
    let value = |wanted: NewSetting| match wanted {
        NewSetting::Default => None,
        NewSetting::Value(value) => Some(value),
    };
    if let Some(rate) = args.change.rate {
        settings.rate = value(rate);
    }
    if let Some(within) = args.change.within {
        settings.within_s = value(within).filter(|seconds| *seconds > 0);
    }
    if let Some(after) = args.change.replace_after {
        settings.replace_after_s = value(after);
    }
}

fn screen(status: &Status) -> String {
    let settings = &status.settings;
    let rate = settings
        .rate
        .map_or_else(|| "the default rate".into(), |rate| format!("{} a second", format_size(rate)));
    let within = settings
        .within_s
        .map_or_else(String::new, |s| format!(", more if that takes more than {}", duration(s)));
    let replaced = match settings.replace_after_s {
        Some(0) => "lost members are not replaced".into(),
        Some(seconds) => format!("lost members are replaced after {}", duration(seconds)),
        None => format!(
            "lost members are replaced after {}",
            duration(mgmt::limits::REPLACE_MEMBER_AFTER.as_secs())
        ),
    };
    let paused = if settings.paused { "; paused (weft group resync resume)" } else { "" };
    let head = format!("each member gets at most {rate}{within}; {replaced}{paused}\n");
    if status.members.is_empty() {
        return format!("{head}all members of mirrored groups are in sync\n");
    }
    format!("{head}{}", members_table(&status.members))
}

fn members_table(members: &[ResyncInfo]) -> String {
    let row = |info: &ResyncInfo| {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let progress = info.progress.as_ref();
        let why = progress.and_then(|p| p.hindrance.clone()).or_else(|| info.waits_for.clone());
        [
            info.group.to_string(),
            info.target.to_string(),
            info.state.name().into(),
            or_dash(progress.and_then(|p| p.files_left).map(|files| files.to_string())),
            or_dash(progress.and_then(|p| p.bytes_left).map(format_size)),
            or_dash(progress.map(|p| format_size(p.bytes_moved))),
            or_dash(progress.map(|p| format_size(p.rate))),
            or_dash(info.remaining_s.map(duration)),
            why.unwrap_or_default(),
        ]
    };
    let heading = [
        ("GROUP", Align::Right),
        ("TARGET", Align::Right),
        ("STATE", Align::Left),
        ("FILES LEFT", Align::Right),
        ("LEFT", Align::Right),
        ("SENT", Align::Right),
        ("RATE/S", Align::Right),
        ("TIME LEFT", Align::Right),
        ("WAITS FOR", Align::Left),
    ];
    table(heading, &members.iter().map(row).collect::<Vec<_>>())
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GroupId, MemberState, TargetId};
    use wire::mgmt::ResyncProgress;

    #[test]
    fn status_says_what_is_set_and_what_is_left() {
        let mut status = Status {
            settings: ResyncSettings { rate: Some(200 << 20), paused: true, ..ResyncSettings::default() },
            members: vec![],
        };
        let text = screen(&status);
        for part in ["200 MiB a second", "after 30 min", "paused", "are in sync"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let progress = ResyncProgress {
            files_left: Some(3),
            bytes_left: Some(20 << 20),
            rate: 2 << 20,
            ..ResyncProgress::default()
        };
        let info = ResyncInfo {
            group: GroupId(100_001),
            target: TargetId(4),
            state: MemberState::Rebuilding,
            progress: Some(progress),
            remaining_s: Some(600),
            waits_for: None,
        };
        let waits = ResyncInfo {
            state: MemberState::NeedsRebuild,
            progress: None,
            remaining_s: None,
            waits_for: Some("its target is unreachable".into()),
            ..info.clone()
        };
        status.members = vec![info, waits];
        status.settings =
            ResyncSettings { within_s: Some(3600), replace_after_s: Some(0), ..Default::default() };
        let text = screen(&status);
        for part in ["rebuilding", "20 MiB", "10 min", "unreachable", "not replaced", "more than 60 min"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
