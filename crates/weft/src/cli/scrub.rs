//! Commands for scrubbing.

use super::{QueryArgs, WatchArgs};
use crate::size::parse_size;
use clap::{Args, Subcommand};

/// `weft scrub`.
#[derive(Subcommand, Debug)]
pub enum ScrubCommand {
    /// Scrub all targets now, from their beginning
    Start(ScrubStartArgs),
    /// Show the progress of each target, and the damage found
    Status(WatchArgs),
    /// Pause running scrubs, and start no new ones
    Stop(QueryArgs),
    /// Resume scrubbing after a stop
    Resume(QueryArgs),
    /// Set interval and rate
    Set(ScrubSetArgs),
}

/// `weft scrub start`.
#[derive(Args, Debug)]
#[command(
    after_help = "Damage is repaired from other replicas; weft health and the logs report the rest, and weft fsck names the files."
)]
pub struct ScrubStartArgs {
    /// Maximum bytes per second from each target from now on [default: as set]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft scrub set`.
#[derive(Args, Debug)]
pub struct ScrubSetArgs {
    /// Interval from start to start on each target, like 30d or 12h; 0: only on request [default:
    /// 30d]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub every: Option<u64>,
    /// Maximum bytes per second from each target; a quarter of it while the target is in use
    /// [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Parses a duration like `90s`, `30m`, `12h`, `30d` or `0`. Returns seconds.
fn parse_time(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a time: write for example 30d, 12h or 0");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "" if number == 0 => 1,
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("0", 0), ("90s", 90), ("30m", 1800), ("12h", 43200), ("30d", 2_592_000)] {
            assert_eq!(parse_time(text), Ok(seconds));
        }
        for text in ["", "5", "d", "1w", "-1d", "99999999999999999999d"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
