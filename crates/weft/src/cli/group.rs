//! Commands for redundancy groups.

use super::{QueryArgs, WatchArgs};
use crate::size::parse_size;
use clap::{Args, Subcommand};
use types::Scheme;

/// `weft group`.
#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// Show all groups, with the states of their members
    List(QueryArgs),
    /// Show a group
    Show(GroupArgs),
    /// Create the missing groups of a scheme in a pool
    Create(GroupCreateArgs),
    /// Separate members that share a node or rack, and spread memberships evenly over targets
    Rebalance(GroupRebalanceArgs),
    /// Continue from an outdated replica when all that were in sync are lost for good
    Recover(GroupRecoverArgs),
    /// Resync of outdated members (also: weft resync)
    #[command(subcommand)]
    Resync(ResyncCommand),
}

/// `weft group rebalance`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each group keeps all its replicas meanwhile; weft group resync status shows the progress."
)]
pub struct GroupRebalanceArgs {
    /// Pool to rebalance
    #[arg(long, value_name = "NAME", default_value = mgmt::DEFAULT_POOL.1)]
    pub pool: String,
    /// Only show what would move
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft group recover`.
#[derive(Args, Debug)]
#[command(
    after_help = "Data written while that target was out of sync is lost, even if it was synced. Without --accept-loss the command only shows what is known to be lost. Run weft fsck afterwards."
)]
pub struct GroupRecoverArgs {
    /// Id of the group
    pub group: u32,
    /// Target to continue from: a member that needs resync
    #[arg(long, value_name = "TARGET")]
    pub from: u32,
    /// Do it: what that target has missed is lost
    #[arg(long)]
    pub accept_loss: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft group resync`, and `weft resync`.
#[derive(Subcommand, Debug)]
pub enum ResyncCommand {
    /// Show settings and progress
    Status(WatchArgs),
    /// Pause all resyncs, also running ones
    Pause(QueryArgs),
    /// Resume resyncs
    Resume(QueryArgs),
    /// Change the rate, and when lost members are replaced
    Set(ResyncSetArgs),
}

/// `weft group resync set`.
#[derive(Args, Debug)]
pub struct ResyncSetArgs {
    /// Settings to change
    #[command(flatten)]
    pub change: ResyncChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Settings of resyncs that can be changed.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct ResyncChange {
    /// Maximum bytes per second to one member, like 200MiB; or: default
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub rate: Option<NewSetting>,
    /// Exceed the rate if the resync would take longer than this, for example 1h; or: off
    #[arg(long, value_name = "TIME", value_parser = parse_within)]
    pub within: Option<NewSetting>,
    /// Replace a member that is gone for this long by another target, for example 30m; or: never,
    /// default
    #[arg(long, value_name = "TIME", value_parser = parse_after)]
    pub replace_after: Option<NewSetting>,
}

/// A new value of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum NewSetting {
    Default,
    Value(u64),
}

fn parse_rate(text: &str) -> Result<NewSetting, String> {
    if text == "default" { Ok(NewSetting::Default) } else { parse_size(text).map(NewSetting::Value) }
}

fn parse_within(text: &str) -> Result<NewSetting, String> {
    if text == "off" { Ok(NewSetting::Default) } else { parse_seconds(text).map(NewSetting::Value) }
}

fn parse_after(text: &str) -> Result<NewSetting, String> {
    match text {
        "default" => Ok(NewSetting::Default),
        "never" => Ok(NewSetting::Value(0)),
        text => parse_seconds(text).map(NewSetting::Value),
    }
}

/// Parses a duration like `45s`, `30m`, `1h` or `2d`. Returns seconds.
pub(super) fn parse_seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a time: write for example 45s, 30m, 1h or 2d");
    let unit = match text.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3600,
        Some(b'd') => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

/// A group, and the state directory to use.
#[derive(Args, Debug)]
pub struct GroupArgs {
    /// Id of the group
    pub group: u32,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft group create`.
#[derive(Args, Debug)]
#[command(
    after_help = "weft entry set-pattern DIR --scheme S creates them as well; more are added when targets join the pool."
)]
pub struct GroupCreateArgs {
    /// Pool of the group's targets
    #[arg(long, value_name = "NAME", default_value = mgmt::DEFAULT_POOL.1)]
    pub pool: String,
    /// Redundancy: mirror:2 or mirror:3
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Scheme,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("45s", 45), ("30m", 1800), ("1h", 3600), ("2d", 172_800)] {
            assert_eq!(parse_seconds(text), Ok(seconds));
        }
        for text in ["", "5", "h", "1.5h", "-1s", "0s", "999999999999999999d", "1 h", "3\u{20ac}"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
        assert_eq!(parse_after("never"), Ok(NewSetting::Value(0)));
        assert_eq!(parse_rate("default"), Ok(NewSetting::Default));
    }
}
