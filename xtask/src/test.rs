//! All tests.

use crate::summary::Summary;
use crate::timing::Timing;
use crate::{deny, e2e, flaky, interrupt, units};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Only the tests of the crates, without mounts.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: e2e::Form,
}

/// Runs the tests of the crates, then the end-to-end suite. Prints the time of each stage, the
/// failed tests, and the totals in the last line.
pub fn run(options: &Options) -> Result<(), String> {
    interrupt::watch(|| {})?;
    let (mut total, mut timing) = (Summary::default(), Timing::default());
    let mut add = |(summary, stages): (Summary, Timing)| {
        total += summary;
        timing.extend(stages);
    };
    add(deny::check_timed());
    add(units::run(options.form.full)?);
    if !options.quick {
        add(e2e::run_suite(&e2e::Options::everything(options.form.clone()))?);
    }
    println!("{timing}");
    flaky::record(&total.flaky)?;
    if options.form.full {
        total.fail_flaky();
    }
    total.print();
    if total.failed > 0 { Err(format!("{} tests failed", total.failed)) } else { Ok(()) }
}
