//! Progress of long work, on standard error. No other module knows how it is drawn.
//!
//! On a terminal, a bar shows done, total, rate and remaining time; where no total is known, a
//! spinner shows what is done. It disappears when the work ends, also by Ctrl-C, so that only
//! results stay. Elsewhere nothing is printed: cron mails each line, and a log needs only the
//! outcome. Results go to standard output in both cases.

use crate::output::print_to_stderr;
use crate::size::format_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, WeakProgressBar};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// Most redraws a second.
const REDRAWS_PER_S: u8 = 10;
/// Interval in which a spinner moves and times are redrawn, also if nothing else changes.
const TICK: Duration = Duration::from_millis(200);
/// Interval of queries for the progress of another process.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);
/// Parts into which a share is divided.
const SHARE_PARTS: u64 = 1000;

/// How much of the work is done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Done {
    /// Unknown; the time that has passed is shown.
    Unknown,
    /// So many things, of a total if it is known.
    Things(u64, Option<u64>),
    /// So many bytes, of a total if it is known.
    Bytes(u64, Option<u64>),
    /// A share between 0 and 1.
    Share(f64),
}

/// What a number counts; it decides how the line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Nothing,
    Things,
    Bytes,
    Share,
}

/// Form of the current line: unit, and whether there is a total.
type Form = (Unit, bool);

/// The progress of one piece of work. It disappears on drop.
pub struct Progress {
    /// `None` if nothing is shown.
    bar: Option<ProgressBar>,
    form: Mutex<Option<Form>>,
}

impl Progress {
    /// Shows that work begins. SIGINT and SIGTERM clear the line, and end the process.
    pub fn start(what: &str) -> Progress {
        Progress::on(draw_target(), what, clear_at_signals)
    }

    /// Like [`Progress::start`], for work that handles signals itself.
    pub fn start_stoppable(what: &str) -> Progress {
        Progress::on(draw_target(), what, |_| ())
    }

    /// `prepare` gets the bar before it is drawn.
    fn on(target: ProgressDrawTarget, what: &str, prepare: impl FnOnce(&ProgressBar)) -> Progress {
        if target.is_hidden() {
            return Progress { bar: None, form: Mutex::default() };
        }
        let bar = ProgressBar::with_draw_target(None, target);
        prepare(&bar);
        let progress = Progress { bar: Some(bar), form: Mutex::default() };
        progress.update(what, Done::Unknown);
        if let Some(bar) = &progress.bar {
            bar.tick();
            bar.enable_steady_tick(TICK);
        }
        progress
    }

    /// Whether anything is shown. If not, collecting numbers for it is a waste.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Shows what is being done, and how much of it is done.
    pub fn update(&self, what: impl Into<String>, done: Done) {
        let Some(bar) = &self.bar else { return };
        let (unit, position, total) = match done {
            Done::Unknown => (Unit::Nothing, 0, None),
            Done::Things(position, total) => (Unit::Things, position, total),
            Done::Bytes(position, total) => (Unit::Bytes, position, total),
            Done::Share(share) => (Unit::Share, (share * SHARE_PARTS as f64) as u64, Some(SHARE_PARTS)),
        };
        let form = (unit, total.is_some());
        let mut last = self.form.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other_form = *last != Some(form);
        if is_other_form {
            bar.set_style(style(form));
            *last = Some(form);
        }
        // A rate over the end of one part of the work and the begin of the next means nothing.
        let begins = is_other_form || position < bar.position();
        bar.set_message(what.into());
        match total {
            Some(total) => bar.set_length(total.max(position)),
            None => bar.unset_length(),
        }
        bar.set_position(position);
        if begins {
            bar.reset_elapsed();
            bar.reset_eta();
        }
    }

    /// Prints a line that stays, above the progress, if there is one.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_to_stderr(line)),
            None => print_to_stderr(line),
        }
    }

    /// Ends it before the drop, where others share it.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Does work. Meanwhile, another thread updates the progress again and again.
    pub fn during<T>(&self, update: impl Fn(&Progress) + Send, work: impl FnOnce() -> T) -> T {
        if !self.is_shown() {
            return work();
        }
        std::thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            scope.spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(QUERY_INTERVAL) {
                    update(self);
                }
            });
            let outcome = work();
            drop(done);
            outcome
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Prints the outcome of a step of long work, where progress is shown. The line stays.
pub fn print_step(line: &str) {
    if !draw_target().is_hidden() {
        print_to_stderr(line);
    }
}

/// Standard error, if it is a terminal that can move its cursor.
fn draw_target() -> ProgressDrawTarget {
    match std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_S),
    }
}

fn style((unit, has_total): Form) -> ProgressStyle {
    let template = match (unit, has_total) {
        (Unit::Nothing, _) => "{spinner} {wide_msg} {elapsed}",
        (_, false) => "{spinner} {wide_msg} {amount}, {elapsed}",
        (_, true) => "{wide_msg} [{bar:20}] {amount}",
    };
    ProgressStyle::with_template(template)
        .expect("the templates are constant, and a test draws all of them")
        .progress_chars("=> ")
        .tick_chars("|/-\\ ")
        .with_key("amount", move |state: &ProgressState, out: &mut dyn fmt::Write| {
            // A String takes any text.
            let _ = out.write_str(&amount(unit, state.pos(), state.len(), state.per_sec(), state.eta()));
        })
}

/// Formats what is done, of how much, how fast, and how long the rest will take.
fn amount(unit: Unit, done: u64, total: Option<u64>, per_s: f64, left: Duration) -> String {
    let number = |value: u64| match unit {
        Unit::Bytes => format_size(value),
        _ => value.to_string(),
    };
    let mut text = match (unit, total) {
        (Unit::Nothing, _) => String::new(),
        (Unit::Share, total) => format!("{} %", 100 * done / total.unwrap_or(SHARE_PARTS).max(1)),
        (_, Some(total)) => format!("{} of {}", number(done), number(total)),
        (_, None) => number(done),
    };
    if matches!(unit, Unit::Things | Unit::Bytes) && per_s >= 1.0 {
        text += &format!(", {}/s", number(per_s as u64));
    }
    if total.is_some_and(|total| done < total) && per_s > 0.0 && left > Duration::ZERO {
        text += &format!(", {} left", format_time(left.as_secs() + 1));
    }
    text
}

/// Formats a time roughly: `90 s`, `5 min`, `3 h`.
pub fn format_time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

/// Lines that a signal clears before it ends the process.
static SHOWN: Mutex<Vec<WeakProgressBar>> = Mutex::new(Vec::new());

fn shown() -> MutexGuard<'static, Vec<WeakProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clear_at_signals(bar: &ProgressBar) {
    static WATCH: Once = Once::new();
    let mut bars = shown();
    bars.retain(|bar| bar.upgrade().is_some());
    bars.push(bar.downgrade());
    drop(bars);
    WATCH.call_once(|| {
        // Without the thread, a signal ends the process as always, and the line stays.
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
        let watch = move || {
            for signal in signals.forever() {
                shown().iter().filter_map(WeakProgressBar::upgrade).for_each(|bar| bar.finish_and_clear());
                // Ends the process by the signal, as the shell expects.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        let _ = std::thread::Builder::new().name("weft-signals".into()).spawn(watch);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_shows_what_is_known() {
        let text =
            |unit, done, total, per_s, left_s| amount(unit, done, total, per_s, Duration::from_secs(left_s));
        assert_eq!(text(Unit::Things, 3, None, 0.0, 0), "3");
        assert_eq!(text(Unit::Things, 3, Some(9), 2.5, 3), "3 of 9, 2/s, 4 s left");
        assert_eq!(
            text(Unit::Bytes, 1 << 20, Some(1 << 30), 1024.0, 600),
            "1 MiB of 1 GiB, 1 KiB/s, 11 min left"
        );
        assert_eq!(text(Unit::Bytes, 1 << 20, None, 1024.0, 0), "1 MiB, 1 KiB/s");
        assert_eq!(text(Unit::Bytes, 9, Some(9), 1024.0, 600), "9 B of 9 B, 1 KiB/s");
        assert_eq!(text(Unit::Share, 500, Some(1000), 100.0, 4), "50 %, 5 s left");
        assert_eq!([90, 300, 9000].map(format_time), ["90 s", "5 min", "3 h"]);
    }

    #[test]
    fn nothing_is_shown_where_nothing_can_be_drawn() {
        let progress = Progress::on(ProgressDrawTarget::hidden(), "reading", |_| ());
        assert!(!progress.is_shown());
        progress.update("reading", Done::Things(1, Some(2)));
        assert_eq!(progress.during(|_| panic!("no query is needed"), || 7), 7);
    }

    #[test]
    fn each_form_has_a_template() {
        for unit in [Unit::Nothing, Unit::Things, Unit::Bytes, Unit::Share] {
            for has_total in [false, true] {
                style((unit, has_total));
            }
        }
    }
}
