//! `weft target remove`.

use super::fsck::create_loss_list;
use super::manage::{find_target, print_reply};
use crate::cli::TargetRemoveArgs;
use crate::control::{LossParameters, Request};
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::size::format_size;
use ::fsck::{Losses, LostFile, LostGroup};
use serde::de::DeserializeOwned;
use std::time::Duration;
use types::{Result, TargetId, TargetState};
use wire::{MgmtReply, MgmtRequest};

/// Longest time for the answer: all metadata is read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Most files that are shown.
const MAX_SHOWN: usize = 20;

/// Removes a target, or shows what would be lost with it.
pub fn run(args: &TargetRemoveArgs) -> Result<()> {
    let (dir, target) = (&args.query.dir, TargetId(args.target));
    let remove = MgmtRequest::RemoveTarget { target, accept_loss: args.accept_loss };
    if args.dry_run {
        return show_losses(args, &losses(args)?);
    }
    let is_offline = || find_target(dir, target).map(|info| info.target.state == TargetState::Offline);
    if !args.accept_loss || !is_offline()? {
        let reply: MgmtReply = ask(args, Request::Manage { request: remove })?;
        return if args.query.json { print_reply(&reply) } else { Ok(()) };
    }
    let losses = losses(args)?;
    // The losses are shown before the removal.
    show_losses(args, &losses)?;
    ask(args, Request::Manage { request: remove }).map(|_: MgmtReply| ())
}

fn ask<T: DeserializeOwned>(args: &TargetRemoveArgs, request: Request) -> Result<T> {
    let what = match request {
        Request::Losses { .. } => format!("reading which files only target {} has", args.target),
        _ => format!("removing target {}", args.target),
    };
    let _progress = Progress::start(&what);
    args.query.dir.find()?.ask_with_timeout(request, ANSWER_TIMEOUT)
}

/// Returns what would be lost. If a list is requested, it is complete when this returns.
fn losses(args: &TargetRemoveArgs) -> Result<Losses> {
    let list = args.list.as_deref().map(create_loss_list).transpose()?;
    let order = LossParameters { target: TargetId(args.target), list: list.clone() };
    let losses = ask(args, Request::Losses { order });
    if let Some(file) = list
        && file.metadata().is_ok_and(|meta| meta.len() == 0)
    {
        // Nothing would be lost.
        let _ = std::fs::remove_file(file);
    }
    losses
}

fn show_losses(args: &TargetRemoveArgs, losses: &Losses) -> Result<()> {
    match args.query.json {
        true => print_json(losses),
        false => {
            print(&screen(losses));
            Ok(())
        }
    }
}

fn screen(losses: &Losses) -> String {
    let Losses { target, groups, files, bytes, named } = losses;
    if *files == 0 {
        return format!("target {target}: no file has content only there\n");
    }
    let mut text =
        format!("target {target}: {files} files have {} on no other target\n", format_size(*bytes));
    let line = |file: &LostFile| {
        format!("  {}: {} of {}\n", file.path, format_size(file.lost), format_size(file.size))
    };
    text.extend(named.iter().take(MAX_SHOWN).map(line));
    let more = files.saturating_sub(named.len().min(MAX_SHOWN) as u64);
    if more > 0 {
        text += &format!("  and {more} more files; --list FILE writes all of them to a file\n");
    }
    let older = |lost: &LostGroup| {
        let (group, from) = (lost.group, lost.older_on?);
        Some(format!(
            "group {group} can continue from target {from}, which is outdated: weft group recover {group} --from {from}\n"
        ))
    };
    text.extend(groups.iter().filter_map(older));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GroupId, InodeId, Scheme};

    fn lost(count: usize) -> Losses {
        let file = |at: usize| LostFile {
            path: format!("/f{at}"),
            ino: InodeId(at as u64),
            size: 4 << 20,
            lost: 1 << 20,
        };
        let named: Vec<LostFile> = (0..count).map(file).collect();
        let groups = vec![LostGroup { group: GroupId(2), scheme: Scheme::Single, older_on: None }];
        let (files, bytes) = (count as u64, (count as u64) << 20);
        Losses { target: TargetId(2), groups, files, bytes, named }
    }

    #[test]
    fn files_are_shown_with_what_they_lose() {
        assert_eq!(screen(&lost(0)), "target 2: no file has content only there\n");
        let one = "target 2: 1 files have 1 MiB on no other target\n  /f0: 1 MiB of 4 MiB\n";
        assert_eq!(screen(&lost(1)), one);
        let many = screen(&lost(30));
        assert!(many.contains("/f19") && !many.contains("/f20"), "{many}");
        assert!(many.contains("and 10 more files; --list FILE"), "{many}");
    }

    #[test]
    fn an_older_copy_is_a_way_out() {
        let mut losses = lost(1);
        losses.groups.push(LostGroup {
            group: GroupId(100_001),
            scheme: Scheme::Mirror(2),
            older_on: Some(TargetId(4)),
        });
        assert!(screen(&losses).ends_with("weft group recover 100001 --from 4\n"), "{}", screen(&losses));
    }
}
