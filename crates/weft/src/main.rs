//! The `weft` binary: the administrator's commands, and the assembly of a whole cluster in one
//! process.
//!
//! One file per command in `cmd/`. [`assembly`] connects the services; [`control`] is the protocol
//! between commands and a running process. No request processing happens here.

// The schemas of the HTTP interface are one large literal (api::openapi).
#![recursion_limit = "256"]

mod api;
mod assembly;
mod catalogue;
mod cli;
mod cmd;
mod control;
mod detach;
mod discovery;
#[cfg(test)]
mod documents;
mod exit;
mod kernel;
mod logging;
mod mount_options;
mod mount_watch;
mod mountpoint;
mod node_config;
mod numa;
mod output;
mod progress;
mod size;
mod systemd;
mod verbs;

use exit::{Exit, Failure};
use std::ffi::OsString;
use std::process::ExitCode;

/// A request allocates and frees some dozen small objects on its core, which this allocator does
/// without contention between cores.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    rt::draw_hash_keys();
    let given = arguments(std::env::args_os());
    let format = cli::error_format(&given);
    let command = match cli::parse(&given) {
        Ok(cli::Call::Run(command)) => command,
        Ok(cli::Call::Print(text)) => {
            output::print(&text);
            return Exit::Success.into();
        }
        Err(failure) => return fail(format, &failure),
    };
    cmd::restrict_new_files(&command);
    match cmd::run(*command) {
        Ok(exit) => exit.into(),
        Err(failure) => fail(format, &failure),
    }
}

fn fail(format: output::ErrorFormat, failure: &Failure) -> ExitCode {
    output::print_error(format, &failure.error);
    failure.exit.into()
}

/// Returns the arguments, with `mount-helper` inserted if `mount(8)` calls the binary by the name
/// of its helper.
fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = given.collect();
    let called = given.first().and_then(|name| std::path::Path::new(name).file_name());
    if called == Some(cmd::install_helper::HELPER_NAME.as_ref()) {
        given.insert(1, "mount-helper".into());
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_name_means_the_helper_command() {
        let called = |name: &str| arguments([name, "/d", "/m"].map(OsString::from).into_iter());
        assert_eq!(called("/sbin/mount.fuse.weft"), ["/sbin/mount.fuse.weft", "mount-helper", "/d", "/m"]);
        assert_eq!(called("/usr/bin/weft"), ["/usr/bin/weft", "/d", "/m"]);
    }
}
