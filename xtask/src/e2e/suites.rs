//! External POSIX test suites: pjdfstest, fsx, fio with verification.

use super::outcome::{At, TestResult, ensure, ensure_eq, skip};
use super::stage::{Stage, Subject};
use super::{Scope, TestCase, tools};
use crate::{process, sys};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "pjdfstest", scope: Scope::Mounted, minutes: 5, run: pjdfstest },
    TestCase { name: "fsx", scope: Scope::Mounted, minutes: 8, run: fsx },
    TestCase { name: "fio_verify", scope: Scope::Mounted, minutes: 5, run: fio },
];

/// Deadline of one run of a suite in its short form; a test's own deadline may be shorter.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Tests that pjdfstest can't run on a mounted weft: 13 that remount, and one that needs LINK_MAX,
/// which FUSE can't report.
const SKIPPED_BY_PJDFSTEST: &[&str] = &[
    "chmod::erofs_named",
    "chown::erofs_named",
    "chown::lchown::erofs_named",
    "link::erofs_named",
    "link::link_count_max",
    "mkdir::erofs_new_file",
    "mkfifo::erofs_new_file",
    "open::erofs_named",
    "open::erofs_new_file",
    "rename::erofs_named",
    "rmdir::erofs_named",
    "symlink::erofs_new_file",
    "truncate::erofs_named",
    "unlink::erofs_named",
];

/// Number of pjdfstest tests that pass on a file system without LINK_MAX.
const PASSED_BY_PJDFSTEST: usize = 384;

/// Length of the folder's path. pjdfstest fills paths up to PATH_MAX with whole components, and
/// some lengths make it panic; from 48 bytes on its names don't fit a socket's address. This length
/// works.
const PJDFSTEST_PATH_BYTES: usize = 40;

/// The suites' configurations, compiled in so that the program needs no other files.
const PJDFSTEST_CONFIG: &str = include_str!("../../suites/pjdfstest.toml");
/// Seeds with which fsx itself works: with 3 and 5 it requests an empty allocation within 100,000
/// operations, which every file system refuses.
pub const FSX_SEEDS: [u32; 8] = [1, 2, 4, 6, 7, 8, 9, 10];

const FSX_CONFIG: &str = include_str!("../../suites/fsx.toml");
const FIO_CONFIG: &str = include_str!("../../suites/fio-verify.fio");

fn config(stage: &Stage, name: &str, text: &str) -> TestResult<PathBuf> {
    let path = stage.scratch(&format!("config-{name}"))?.join(name);
    fs::write(&path, text).at(path.display())?;
    Ok(path)
}

fn pjdfstest(stage: &Stage) -> TestResult {
    if !sys::is_root() {
        return skip("pjdfstest needs root");
    }
    let suite = Pjdfstest::prepare(stage, &stage.root()?)?;
    let (mut command, _) = suite.command(&[])?;
    // It consumes the output itself.
    let done = process::run(&mut command, DEADLINE)?;
    suite.judge(&done.stdout, done.status.success(), !matches!(stage.subject, Subject::Directory(_)))
}

/// pjdfstest, prepared to run.
pub struct Pjdfstest {
    program: PathBuf,
    config: PathBuf,
    /// Its working folder.
    pub dir: PathBuf,
    other: PathBuf,
    output: PathBuf,
}

impl Pjdfstest {
    /// Prepares it below the root of a mount.
    pub fn prepare(stage: &Stage, root: &Path) -> TestResult<Pjdfstest> {
        let program = tools::from_registry("pjdfstest")?;
        let config = config(stage, "pjdfstest.toml", PJDFSTEST_CONFIG)?;
        let padding = PJDFSTEST_PATH_BYTES.saturating_sub(root.as_os_str().len() + 1).max(1);
        let dir = root.join("p".repeat(padding));
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).at(dir.display());
            }
            _ => fs::create_dir(&dir).at(dir.display())?,
        }
        // Its tests switch to other users, who must be able to reach the folder.
        for reached in [root, &dir] {
            fs::set_permissions(reached, fs::Permissions::from_mode(0o755)).at(reached.display())?;
        }
        let other = other_file_system(stage, &dir)?;
        let output = stage.scratch("pjdfstest-output")?.join("output");
        Ok(Pjdfstest { program, config, dir, other, output })
    }

    /// Returns the command for tests whose names contain one of the patterns, or all tests if there
    /// are none, and the file of its output.
    pub fn command(&self, patterns: &[&str]) -> TestResult<(Command, PathBuf)> {
        let output = fs::File::create(&self.output).at(self.output.display())?;
        let mut command = Command::new(&self.program);
        command
            .arg("-c")
            .arg(&self.config)
            .arg("-p")
            .arg(&self.dir)
            .arg("-s")
            .arg(&self.other)
            .args(patterns);
        command.stdin(Stdio::null()).stderr(output.try_clone().at("output")?).stdout(output);
        Ok((command, self.output.clone()))
    }

    /// Checks its result. `all`: as many tests as known must have passed on weft.
    pub fn judge(&self, said: &str, succeeded: bool, all: bool) -> TestResult {
        let results = Results::parse(said);
        ensure_eq!(results.failed, BTreeSet::new(), "tests of pjdfstest that failed");
        ensure!(succeeded, "pjdfstest ended with an error:\n    {}", super::rig::last_lines(said));
        if all {
            let expected: BTreeSet<String> = SKIPPED_BY_PJDFSTEST.iter().map(ToString::to_string).collect();
            ensure_eq!(results.skipped, expected, "tests that pjdfstest skipped");
            ensure_eq!(results.passed, PASSED_BY_PJDFSTEST, "tests of pjdfstest that passed");
        }
        Ok(())
    }
}

/// Creates a folder on another file system than `dir`, for operations that must fail across file
/// systems.
fn other_file_system(stage: &Stage, dir: &Path) -> TestResult<PathBuf> {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).at(path.display());
    let ours = device(dir)?;
    for path in [stage.scratch("pjdfstest-other")?, PathBuf::from("/dev/shm")] {
        if device(&path)? != ours {
            return Ok(path);
        }
    }
    skip("there is no second file system")
}

/// Results printed by pjdfstest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    passed: usize,
    failed: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

impl Results {
    fn parse(output: &str) -> Results {
        let mut results = Results::default();
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [name, "ok"] if name.contains("::") => results.passed += 1,
                [name, "FAILED"] => drop(results.failed.insert(name.to_string())),
                [name, "skipped"] => drop(results.skipped.insert(name.to_string())),
                _ => {}
            }
        }
        results
    }
}

fn fsx(stage: &Stage) -> TestResult {
    let dir = stage.folder("fsx")?;
    let (seeds, operations) = if stage.full { (&FSX_SEEDS[..], 100_000) } else { (&FSX_SEEDS[..3], 20_000) };
    for &seed in seeds {
        let mut command = fsx_command(stage, &dir.join(format!("file-{seed}")), seed, operations)?;
        let done = process::run_ok(&mut command, DEADLINE)?;
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains("A-OK"), "fsx with seed {seed} doesn't say that all is well: {}", done.tail());
    }
    Ok(())
}

/// Returns an fsx command for a file, with all of fsx's operations.
pub fn fsx_command(stage: &Stage, file: &Path, seed: u32, operations: u32) -> TestResult<Command> {
    let program = tools::from_registry("fsx")?;
    let name = file.file_name().map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
    let config = config(stage, &format!("fsx-{name}.toml"), FSX_CONFIG)?;
    let artifacts = stage.scratch(&format!("fsx-artifacts-{name}"))?;
    let mut command = Command::new(program);
    command.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"]).arg(&config);
    command.arg("-P").arg(&artifacts).arg(file);
    Ok(command)
}

fn fio(stage: &Stage) -> TestResult {
    let program = tools::find("fio")?;
    let config = config(stage, "fio-verify.fio", FIO_CONFIG)?;
    let dir = stage.folder("fio")?;
    let errors = fio_errors(&program, &config, &dir)?;
    ensure_eq!(errors.len(), 5, "jobs that fio reports");
    let failed: Vec<_> = errors.iter().filter(|(_, error)| *error != 0).collect();
    ensure!(failed.is_empty(), "jobs of fio with errors: {failed:?}");
    Ok(())
}

/// Writes the jobs' files in one folder and verifies them through another folder that shows the
/// same files.
pub fn fio_write_and_verify(stage: &Stage, write_in: &Path, verify_in: &Path) -> TestResult {
    let program = tools::find("fio")?;
    let mut jobs = FIO_CONFIG.replace("verify_backlog=256\n", "");
    if !stage.full {
        jobs = jobs.replace("size=64m", "size=16m").replace("size=16m", "size=4m");
    }
    for (step, option, dir) in [("write", "do_verify=0", write_in), ("verify", "verify_only=1", verify_in)] {
        let config = config(stage, &format!("fio-{step}.fio"), &jobs.replace("do_verify=1", option))?;
        let errors = fio_errors(&program, &config, dir)?;
        ensure_eq!(errors.len(), 5, "jobs that fio reports");
        let failed: Vec<_> = errors.iter().filter(|(_, error)| *error != 0).collect();
        ensure!(failed.is_empty(), "jobs of fio with errors, to {step}: {failed:?}");
    }
    Ok(())
}

/// Runs a job file. Returns each job's name and error number.
fn fio_errors(program: &Path, config: &Path, dir: &Path) -> TestResult<Vec<(String, i64)>> {
    let mut command = Command::new(program);
    command.arg("--output-format=json").arg("--directory").arg(dir).arg(config).current_dir(dir);
    let done = process::run_ok(&mut command, DEADLINE)?;
    let json: serde_json::Value =
        serde_json::from_str(&done.stdout).map_err(|error| format!("fio printed no JSON: {error}"))?;
    let jobs = json["jobs"].as_array().ok_or_else(|| "fio reports no jobs".to_string())?;
    let result =
        |job: &serde_json::Value| Some((job["jobname"].as_str()?.to_string(), job["error"].as_i64()?));
    jobs.iter()
        .map(|job| Ok(result(job).ok_or_else(|| "fio reports a job without error".to_string())?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_pjdfstest_are_understood() {
        let output = "chmod::a  ok\nchmod::erofs_named   skipped\n\tRemounts are not allowed\n\
                      open::b   FAILED\n\tcapacity overflow\n\nSummary: 1 failed, 1 skipped, 1 passed\n";
        let results = Results::parse(output);
        assert_eq!(results.passed, 1);
        assert_eq!(results.failed, BTreeSet::from(["open::b".to_string()]));
        assert_eq!(results.skipped, BTreeSet::from(["chmod::erofs_named".to_string()]));
    }

    #[test]
    fn the_bar_covers_the_whole_suite() {
        assert_eq!(PASSED_BY_PJDFSTEST + SKIPPED_BY_PJDFSTEST.len(), 398);
    }
}
