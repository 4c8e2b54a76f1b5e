//! `weft rm`, `weft cp`, `weft du` and `weft find` do on a mount what the GNU tools do.

use super::outcome::{At, TestResult, ensure, ensure_eq};
use super::rig::COMMAND_DEADLINE;
use super::stage::Stage;
use super::{Rng, Scope, TestCase};
use crate::process;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

pub(super) const TESTS: &[TestCase] =
    &[TestCase { name: "trees_as_gnu_tools", scope: Scope::Mounted, minutes: 2, run: as_gnu_tools }];

/// What copies must have in common: type, mode, owner, links, path, target and
/// time.
const FORMAT: &str = "%y %m %U %G %n %p %l %T@\\n";
/// Names of a tree.
const NAMES: u64 = 2000;
/// Names of a directory that takes several requests to read.
const WIDE: u64 = 3000;

fn as_gnu_tools(stage: &Stage) -> TestResult {
    let weft = stage.binary()?;
    let dir = stage.folder("trees_as_gnu_tools")?;
    let (tree, outside) = (dir.join("tree"), dir.join("outside"));
    fs::create_dir(&outside).at("outside")?;
    fs::write(outside.join("stays"), "stays").at("stays")?;
    populate(&tree)?;
    fs::hard_link(outside.join("stays"), tree.join("other name")).at("link")?;
    // Allocated space is final once files are on disk.
    process::run_ok(Command::new("sync").arg("-f").arg(&tree), COMMAND_DEADLINE)?;

    for options in [&["-l"][..], &["-s"], &["-s", "-h"], &["-l", "-d", "1"], &["-l", "-a"]] {
        let ours = lines(Command::new(weft).arg("du").args(options).arg(&tree))?;
        ensure_eq!(ours, lines(Command::new("du").args(options).arg(&tree))?, "weft du {options:?}");
    }
    let older = outside.join("stays").display().to_string();
    let conditions: [&[&str]; 5] =
        [&["-ls"], &["-type", "d", "-ls"], &["-name", "*7*"], &["-size", "+20k"], &["-newer", &older]];
    for words in conditions {
        let ours = lines(Command::new(weft).arg("find").arg(&tree).args(words))?;
        ensure!(ours.len() > 10, "weft find {words:?} finds {} files", ours.len());
        ensure_eq!(ours, lines(Command::new("find").arg(&tree).args(words))?, "weft find {words:?}");
    }
    // The time of a copy is final after a sync, too.
    let (ours, theirs) = (dir.join("ours"), dir.join("theirs"));
    process::run_ok(Command::new(weft).args(["cp", "-a"]).args([&tree, &ours]), COMMAND_DEADLINE)?;
    process::run_ok(Command::new("cp").arg("-a").args([&tree, &theirs]), COMMAND_DEADLINE)?;
    process::run_ok(Command::new("sync").arg("-f").arg(&dir), COMMAND_DEADLINE)?;
    process::run_ok(
        Command::new("diff").args(["-r", "--no-dereference"]).args([&ours, &theirs]),
        COMMAND_DEADLINE,
    )?;
    let described =
        |copy: &Path| lines(Command::new("find").current_dir(copy).args([".", "-printf", FORMAT]));
    ensure_eq!(described(&ours)?, described(&theirs)?, "copies of weft cp -a and cp -a");
    let mut remove = Command::new(weft);
    let done = process::run_ok(remove.args(["rm", "-r", "--json"]).arg(&tree), COMMAND_DEADLINE)?;
    ensure!(!tree.exists(), "the tree is still there: {}", done.tail());
    ensure_eq!(fs::read(outside.join("stays")).at("stays")?, b"stays", "a file outside of the tree");
    let refused = process::run(Command::new(weft).args(["rm", "-r"]).arg(stage.root()?), COMMAND_DEADLINE)?;
    ensure_eq!(refused.code(), 64, "status of weft rm -r of the mount point");
    ensure!(outside.exists(), "a refused command has removed something");
    Ok(())
}

/// Returns the words of each line, sorted: the widths of columns depend on the order of lines.
fn lines(command: &mut Command) -> TestResult<Vec<String>> {
    let done = process::run_ok(command.env("LC_ALL", "C"), COMMAND_DEADLINE)?;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines: Vec<String> = done.stdout.lines().map(words).collect();
    lines.sort();
    Ok(lines)
}

/// Creates directories, files with holes, hard links, symlinks and names of several languages.
fn populate(tree: &Path) -> TestResult {
    fs::create_dir(tree).at("tree")?;
    let mut rng = Rng::new(11);
    let (mut directories, mut files) = (vec![tree.to_path_buf()], Vec::new());
    for number in 0..NAMES {
        let dir = &directories[rng.below(directories.len() as u64) as usize];
        let path = dir.join(format!("{} {number}", ["a", "ü", "\"", "\\"][rng.below(4) as usize]));
        match rng.below(10) {
            0..2 => {
                fs::create_dir(&path).at(path.display())?;
                directories.push(path);
            }
            2 => symlink("../..", &path).at(path.display())?,
            3 if !files.is_empty() => {
                let file: &std::path::PathBuf = &files[rng.below(files.len() as u64) as usize];
                fs::hard_link(file, &path).at(path.display())?;
            }
            _ => {
                let file = File::create(&path).at(path.display())?;
                let length = [0, 100, 5000, 40_000][rng.below(4) as usize];
                file.write_all_at(&rng.bytes(length), rng.below(3) * (1 << 20)).at(path.display())?;
                files.push(path);
            }
        }
    }
    let wide = tree.join("wide");
    fs::create_dir(&wide).at("wide")?;
    for number in 0..WIDE {
        File::create(wide.join(format!("file {number}"))).at(format_args!("file {number}"))?;
    }
    Ok(())
}
