//! Every test there is.

use crate::{e2e, units};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Only the tests of the crates, without mounting anything.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: e2e::Form,
}

/// Runs `cargo test`, then the end-to-end suite, names what failed, and prints the line of totals last.
pub fn run(options: &Options) -> Result<(), String> {
    let mut total = units::run()?;
    if !options.quick {
        total += e2e::run_suite(&e2e::Options::everything(options.form.clone()))?;
    }
    total.print();
    if total.failed > 0 { Err(format!("{} tests failed", total.failed)) } else { Ok(()) }
}
