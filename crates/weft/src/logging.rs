//! Where log lines go: standard error, which a detached process points at its log file.

use crate::output::os_error;
use std::fs::{self, OpenOptions};
use std::path::Path;
use tracing_subscriber::EnvFilter;
use types::Result;

/// Which lines are written unless told otherwise.
const DEFAULT_FILTER: &str = "info";
/// Names the variable that tells otherwise, in the syntax of `tracing_subscriber::EnvFilter`.
const FILTER_VARIABLE: &str = "WEFT_LOG";
/// A log longer than this many bytes is put aside at the next start; one old log is kept.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Starts logging to standard error.
pub fn init() {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
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
