//! Rate limit of each log statement.
//!
//! A dead disk, or a stranger who opens connections, makes one log statement repeat the same line.
//! Each statement has a token bucket of lines. Of the lines without a token only the newest is
//! stored. When there is a token again, the next line of the process writes it, with the number of
//! lines before it.

use std::io::Write;
use std::time::{Duration, Instant};

/// Lines that one statement may log in a row: one failure for each target of a large node.
const BURST: u32 = 64;

/// Time for one more line after the burst: an endless flood of lines of 200 bytes takes 1.7 MB a
/// day.
const REFILL: Duration = Duration::from_secs(10);

/// Stored length of a suppressed line, in bytes.
const MAX_STORED_BYTES: usize = 2048;

/// The rate limits of all statements that have logged. There are at most as many as log statements
/// in the program, some hundreds, so a list suffices.
pub struct RateLimits<K> {
    list: Vec<(K, RateLimit)>,
}

struct RateLimit {
    tokens: u32,
    /// Time of the latest token; while the bucket is full, time of its last use.
    refilled: Instant,
    /// Lines without a token since the last written line.
    suppressed: u64,
    /// The newest of them.
    newest: Vec<u8>,
}

impl<K: Clone + PartialEq> RateLimits<K> {
    /// Creates an empty set of rate limits.
    pub const fn new() -> RateLimits<K> {
        RateLimits { list: Vec::new() }
    }

    /// Returns whether a line of this statement is written now; otherwise counts it.
    pub fn admit(&mut self, source: &K, line: &[u8], now: Instant) -> bool {
        let at = self.list.iter().position(|(key, _)| key == source).unwrap_or_else(|| {
            self.list.push((source.clone(), RateLimit::full(now)));
            self.list.len() - 1
        });
        let limit = &mut self.list[at].1;
        let admitted = limit.take(now);
        if !admitted {
            limit.suppressed += 1;
            limit.newest.clear();
            limit.newest.extend_from_slice(&line[..line.len().min(MAX_STORED_BYTES)]);
        }
        admitted
    }

    /// Returns the newest suppressed lines of statements that may log again, each with the number
    /// of lines suppressed before it.
    pub fn due(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let due = |limit: &mut RateLimit| {
            let is_due = limit.suppressed > 0 && limit.take(now);
            is_due.then(|| limit.summary())
        };
        self.list.iter_mut().filter_map(|(_, limit)| due(limit)).collect()
    }
}

impl RateLimit {
    fn full(now: Instant) -> RateLimit {
        RateLimit { tokens: BURST, refilled: now, suppressed: 0, newest: Vec::new() }
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.refilled);
        let gained = (passed.as_secs() / REFILL.as_secs()).min(u64::from(BURST)) as u32;
        if self.tokens + gained >= BURST {
            (self.tokens, self.refilled) = (BURST, now);
        } else {
            self.tokens += gained;
            self.refilled += REFILL * gained;
        }
        let admitted = self.tokens > 0;
        self.tokens -= u32::from(admitted);
        admitted
    }

    fn summary(&mut self) -> Vec<u8> {
        let mut line = std::mem::take(&mut self.newest);
        let before = std::mem::take(&mut self.suppressed) - 1;
        line.truncate(line.trim_ascii_end().len());
        if before > 0 {
            // Writing to a vector doesn't fail.
            let _ = write!(line, " suppressed_lines={before}");
        }
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_floods_the_log_writes_its_burst_and_later_a_count() {
        let mut rate_limits = RateLimits::new();
        let begin = Instant::now();
        let line = |number: u32| format!("line {number}\n").into_bytes();
        let written = (0..BURST + 100).filter(|n| rate_limits.admit(&"flood", &line(*n), begin)).count();
        assert_eq!(written, BURST as usize);
        assert!(rate_limits.due(begin).is_empty(), "no token yet");
        assert!(rate_limits.admit(&"calm", b"another\n", begin), "a place waits for itself alone");

        let lines = rate_limits.due(begin + REFILL);
        let newest = format!("line {} suppressed_lines=99\n", BURST + 99);
        assert_eq!(lines, [newest.into_bytes()]);
        assert!(rate_limits.due(begin + REFILL * 2).is_empty(), "it was told once");
    }

    #[test]
    fn a_flood_that_goes_on_costs_one_line_a_refill() {
        let mut rate_limits = RateLimits::new();
        let begin = Instant::now();
        let mut written = 0;
        for second in 0..1000 {
            let now = begin + Duration::from_secs(second);
            for _ in 0..10 {
                written += rate_limits.due(now).len();
                written += usize::from(rate_limits.admit(&"flood", b"line\n", now));
            }
        }
        let refills = 1000 / REFILL.as_secs() as usize;
        assert!((refills..=refills + BURST as usize).contains(&written), "{written} lines");
    }

    #[test]
    fn a_place_that_was_quiet_has_its_whole_burst_again() {
        let mut rate_limits = RateLimits::new();
        let begin = Instant::now();
        let burst = |rate_limits: &mut RateLimits<&str>, now| {
            (0..2 * BURST).filter(|_| rate_limits.admit(&"place", b"line\n", now)).count()
        };
        assert_eq!(burst(&mut rate_limits, begin), BURST as usize);
        assert_eq!(burst(&mut rate_limits, begin + REFILL * BURST), BURST as usize);
    }

    #[test]
    fn a_long_line_is_kept_in_part() {
        let mut rate_limits = RateLimits::new();
        let begin = Instant::now();
        let long = vec![b'x'; 1 << 20];
        for _ in 0..=BURST {
            rate_limits.admit(&"place", &long, begin);
        }
        assert_eq!(rate_limits.due(begin + REFILL)[0].len(), MAX_STORED_BYTES + 1);
    }
}
