//! The command line as scripts see it: exit statuses, errors and hints.

mod exit_status;
mod json_errors;
mod other_users;
mod progress;
mod wrong_calls;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the command in a directory, without the caller's settings.
fn weft_in(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(arguments)
        .current_dir(dir)
        .env_remove("WEFT_DIR")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn weft(arguments: &[&str]) -> Output {
    weft_in(Path::new("/"), arguments)
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Creates a cluster whose node is stopped, in a new directory below `base`.
fn stopped_node(base: &Path) -> String {
    let dir = base.join("node").to_str().unwrap().to_string();
    let made = weft(&["cluster", "init", "--name", "c", "--address", "127.0.0.1:7599", "--dir", &dir]);
    assert!(made.status.success(), "{}", stderr_text(&made));
    dir
}
