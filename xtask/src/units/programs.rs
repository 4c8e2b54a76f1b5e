//! The test programs of all crates: built together, run one by one.

use crate::interrupt::{self, StopMode};
use crate::{build, process, sys};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Deadline of one test program: the slowest takes a few minutes.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// The environment variable that selects the long form of the crates' tests.
const FULL: &str = "WEFT_TEST_FULL";

/// The slowest programs. They start first, so that the run doesn't end with a single program.
const LONGEST: &[&str] = &["sim", "client", "storage", "meta", "net", "fuse"];

/// A test program built by cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the crate.
    pub package: String,
    /// The arguments of `cargo test -p PACKAGE` that run only this program: `--lib`, `--bin NAME`
    /// or `--test NAME`.
    pub selection: Vec<String>,
    executable: PathBuf,
    /// The crate's folder, which cargo uses as the working directory.
    folder: PathBuf,
}

/// Result of a test program.
pub struct Ended {
    /// Its output; on an error, the reason why there is none.
    pub output: Result<String, String>,
    /// Whether it reported success.
    pub is_success: bool,
}

impl Program {
    /// Returns its name as arguments of `cargo test`.
    pub fn name(&self) -> String {
        format!("-p {} {}", self.package, self.selection.join(" "))
    }

    /// Runs the program to its end, with its tests in short or long form.
    pub fn run(&self, is_full: bool, arguments: &[&str]) -> Ended {
        let mut command = Command::new(&self.executable);
        command.args(arguments).current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        if is_full {
            command.env(FULL, "1");
        }
        sys::unblock_interrupts(&mut command);
        if sys::is_root() {
            sys::unshare_mounts(&mut command);
        }
        match process::run(&mut command, DEADLINE) {
            Ok(done) => {
                let is_success = done.status.success();
                let mut output = done.stdout;
                if !is_success {
                    output = format!("{}\n{output}\n({})\n", done.stderr.trim_end(), done.status);
                }
                Ended { output: Ok(output), is_success }
            }
            Err(error) => Ended { output: Err(error), is_success: false },
        }
    }
}

/// Builds all programs and test programs of the workspace. The slowest come first.
pub fn build() -> Result<Vec<Program>, String> {
    let arguments = ["build", "--workspace", "--bins", "--tests"];
    println!("$ cargo {}", arguments.join(" "));
    let failed = |error| format!("cannot start cargo: {error}; hint: install Rust from https://rustup.rs");
    let mut command = build::cargo();
    command.args(arguments).args(["--message-format", "json-render-diagnostics"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child =
        interrupt::spawn(sys::unblock_interrupts(&mut command), StopMode::Terminate).map_err(failed)?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut programs: Vec<Program> =
        BufReader::new(stdout).lines().map_while(Result::ok).filter_map(|line| program(&line)).collect();
    let status = child.wait().map_err(|error| format!("cargo build: {error}"))?;
    interrupt::ended(&child);
    if !status.success() {
        return Err(format!("cargo {}: {status}", arguments.join(" ")));
    }
    programs.sort_by_key(|program| (rank(program), program.package.clone(), program.selection.clone()));
    Ok(programs)
}

fn rank(program: &Program) -> usize {
    LONGEST.iter().position(|name| *name == program.package).unwrap_or(LONGEST.len())
}

/// Returns the test program in a message of cargo, if there is one.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let name = message["target"]["name"].as_str()?;
    let selection = match message["target"]["kind"][0].as_str()? {
        "lib" => vec!["--lib".to_string()],
        kind => vec![format!("--{kind}"), name.to_string()],
    };
    Some(Program { package: package(message["package_id"].as_str()?)?, selection, executable, folder })
}

/// Returns the crate's name from cargo's package id: `path+file:///folder#version` if the folder
/// has the crate's name, else `path+file:///folder#name@version`.
fn package(id: &str) -> Option<String> {
    let (place, rest) = id.rsplit_once('#')?;
    match rest.split_once('@') {
        Some((name, _)) => Some(name.to_string()),
        None => place.rsplit('/').next().map(str::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_the_messages_of_cargo() {
        let message = |test: bool, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/kv#0.1.0","manifest_path":"/w/crates/kv/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"it"}},"profile":{{"test":{test}}},"executable":"/t/it-1"}}"#
            )
        };
        let found = program(&message(true, "test")).unwrap();
        assert_eq!(
            (found.name().as_str(), found.folder.as_path()),
            ("-p kv --test it", Path::new("/w/crates/kv"))
        );
        assert_eq!(program(&message(true, "lib")).unwrap().name(), "-p kv --lib");
        assert_eq!(program(&message(false, "bin")), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("noise"), None);
    }

    #[test]
    fn a_package_is_known_by_its_id() {
        assert_eq!(package("path+file:///w/crates/kv#0.1.0").as_deref(), Some("kv"));
        assert_eq!(package("path+file:///w/build#xtask@0.1.0").as_deref(), Some("xtask"));
    }
}
