//! Where log lines go: standard error, which a detached process points at its log file.

use crate::output::os_error;
use std::fs::{self, OpenOptions};
use std::path::Path;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use types::Result;

/// Names the variable that says which lines are written: a level, or `TARGET=LEVEL` for parts of the program, separated by
/// commas (`info,meta=debug`). Without it, or where it can't be understood, the level is `info`.
const FILTER_VARIABLE: &str = "WEFT_LOG";
/// A log longer than this many bytes is put aside at the next start; one old log is kept.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Starts logging to standard error.
pub fn init() {
    let asked = std::env::var(FILTER_VARIABLE).ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}

/// Points standard error, and with it the log, at the end of a file.
pub fn redirect(log: &Path) -> Result<()> {
    if fs::metadata(log).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES) {
        fs::rename(log, log.with_extension("log.old")).map_err(|e| os_error(log.display(), &e))?;
    }
    let file =
        OpenOptions::new().create(true).append(true).open(log).map_err(|e| os_error(log.display(), &e))?;
    rustix::stdio::dup2_stderr(&file).map_err(|e| os_error(log.display(), &e.into()))
}
