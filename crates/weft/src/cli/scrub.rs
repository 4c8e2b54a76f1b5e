//! What administrators can type about the search for damage.

use super::QueryArgs;
use crate::size::parse_size;
use clap::{Args, Subcommand};

/// `weft scrub`.
#[derive(Subcommand, Debug)]
pub enum ScrubCommand {
    /// Search all targets now, from their beginning
    Start(ScrubStartArgs),
    /// Show how far each target is, and what was found
    Status(QueryArgs),
    /// Let a search rest where it is, and begin none
    Stop(QueryArgs),
    /// Go on after a stop
    Resume(QueryArgs),
    /// Say how often and how fast
    Set(ScrubSetArgs),
}

/// `weft scrub start`.
#[derive(Args, Debug)]
#[command(
    after_help = "Damage is mended from other copies; of the rest weft health and the logs tell, and weft fsck names the files."
)]
pub struct ScrubStartArgs {
    /// Read at most this much of each target a second from now on [default: as it is set]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft scrub set`.
#[derive(Args, Debug)]
pub struct ScrubSetArgs {
    /// Search each target so long after the last time began, like 30d or 12h; 0: only when it is
    /// asked for [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub every: Option<u64>,
    /// Read at most this much of each target a second; a quarter of it while the target is used
    /// [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Seconds of `90s`, `30m`, `12h`, `30d`, `0`.
fn parse_time(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time: write for example 30d, 12h or 0");
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
