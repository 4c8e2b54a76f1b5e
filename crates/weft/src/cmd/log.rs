//! `weft log level`: the log filter of a running process.

use crate::cli::{LogCommand, LogLevelArgs};
use crate::control::{LogLevel, Request};
use crate::output::show;
use types::Result;

/// Shows or changes the filter of the process that answers.
pub fn run(command: LogCommand) -> Result<()> {
    let LogCommand::Level(LogLevelArgs { filter, query }) = command;
    let level: LogLevel = query.dir.find()?.ask(Request::Log { filter })?;
    show(query.json, &level, || format!("{}\n", level.filter))
}
