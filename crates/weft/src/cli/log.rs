//! `weft log`: the logs of running processes.

use super::QueryArgs;
use crate::logging::parse_filter;
use clap::{Args, Subcommand};

/// `weft log`.
#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Show or change what a running process logs
    Level(LogLevelArgs),
}

/// `weft log level`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples: weft log level debug; weft log level info,meta=debug,net=trace; weft log level info. A TARGET is a part of the program (meta, storage, mgmt, client, net, fuse, weft). The change is in force until the process ends; WEFT_LOG sets what a process starts with."
)]
pub struct LogLevelArgs {
    /// LEVEL, or TARGET=LEVEL, separated by commas: off, error, warn, info, debug or trace
    /// [default: show it]
    #[arg(value_name = "FILTER", value_parser = check)]
    pub filter: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}

fn check(text: &str) -> Result<String, String> {
    parse_filter(text).map(|_| text.to_string()).map_err(|error| error.message.into_owned())
}
