//! Points in time.

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01T00:00:00Z, as seconds and a fraction; negative before 1970, exact
/// past 2038.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds, rounded towards minus infinity.
    pub secs: i64,
    /// `0..1_000_000_000`.
    pub nanos: u32,
}

impl Timestamp {
    /// A timestamp from its parts.
    pub const fn new(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    /// Nanoseconds since 1970; saturates beyond the years 1677 to 2262.
    pub fn as_nanos(self) -> i64 {
        self.secs.saturating_mul(1_000_000_000).saturating_add(self.nanos as i64)
    }

    /// The inverse of [`Timestamp::as_nanos`].
    pub fn from_nanos(nanos: i64) -> Timestamp {
        Timestamp { secs: nanos.div_euclid(1_000_000_000), nanos: nanos.rem_euclid(1_000_000_000) as u32 }
    }

    /// Format for file names: `20261122T103400Z`. Sorts chronologically in the years 0 to 9999.
    pub fn compact_utc(self) -> String {
        let (days, second) = (self.secs.div_euclid(86_400), self.secs.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
    }
}

impl std::fmt::Display for Timestamp {
    /// Format for people, to the minute: `2026-11-22 10:34 UTC`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (days, second) = (self.secs.div_euclid(86_400), self.secs.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar: the algorithm
/// `civil_from_days` of Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms"), which
/// counts in eras of 400 years that begin on March 1.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_display_to_the_minute() {
        assert_eq!(Timestamp::new(59, 0).to_string(), "1970-01-01 00:00 UTC");
        assert_eq!(Timestamp::new(1_800_000_000, 0).to_string(), "2027-01-15 08:00 UTC");
    }

    #[test]
    fn days_have_their_dates() {
        let cases = [
            (0, "19700101T000000Z"),
            (-1, "19691231T235959Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
            (1_795_343_640, "20261122T103400Z"),
        ];
        for (secs, text) in cases {
            assert_eq!(Timestamp::new(secs, 0).compact_utc(), text);
        }
    }
}
