//! Asynchronous creates: another mount finds each file as soon as the creating application has it,
//! and no closed file is lost.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::faults::Fault;
use super::{Cluster, Part, Shape};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "async_creates_are_visible_to_all", scope: Scope::Own, minutes: 2, run: visible_to_all },
    TestCase {
        name: "async_creates_while_services_crash",
        scope: Scope::Own,
        minutes: 4,
        run: killed_services,
    },
];

/// Number of directories, and of files created in each before another mount accesses it: enough for
/// the client to have had a directory delegation.
const DIRS: usize = 20;
const FILES: usize = 12;
/// Kills of services in the short and the long form.
const ROUNDS: (u64, u64) = (1, 10);
/// Time that services are up before a kill, and down after it.
const FAULT: Duration = Duration::from_secs(2);
/// Files per directory during the kills.
const FILES_PER_DIR: usize = 50;

fn content(number: usize) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; 1 + number * 37 % 4096]
}

fn make(path: &Path, number: usize) -> TestResult {
    let mut file = File::create(path).at(path.display())?;
    file.write_all(&content(number)).at(path.display())
}

fn visible_to_all(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 1, storage: 1, clients: 2, timeout: None };
    let cluster = Cluster::build(stage, "promised", shape)?;
    let folders = cluster.shared_folder("files")?;
    for dir in 0..DIRS {
        let [one, two] = [&folders[0], &folders[1]].map(|folder| folder.join(format!("d{dir}")));
        fs::create_dir(&one).at(one.display())?;
        for number in 0..FILES {
            make(&one.join(format!("f{number}")), number)?;
        }
        let (here, there) = (one.join("last"), two.join("last"));
        let mut last = File::create(&here).at(here.display())?;
        let own = last.metadata().at(here.display())?;
        let found = fs::metadata(&there).at(there.display())?;
        let nature = |of: &fs::Metadata| (of.ino(), of.mode(), of.uid(), of.gid(), of.nlink(), of.len());
        ensure_eq!(nature(&found), nature(&own), "what the other mount finds");
        last.write_all(b"first").at(here.display())?;
        ensure_eq!(fs::read(&there).at(there.display())?, b"first", "after a write");
        last.write_all(b" and second").at(here.display())?;
        drop(last);
        ensure_eq!(fs::read(&there).at(there.display())?, b"first and second", "after the close");
        ensure_eq!(fs::read_dir(&two).at(two.display())?.count(), FILES + 1, "names in {}", two.display());
        for number in 0..FILES {
            let path = two.join(format!("f{number}"));
            ensure_eq!(fs::read(&path).at(path.display())?, content(number), "{}", path.display());
        }
        fs::remove_file(&there).at(there.display())?;
        ensure!(!here.exists(), "{} is there though it was removed", here.display());
    }
    cluster.ensure_clean()?;
    cluster.stop()
}

/// Creates files in the folder `$1` until the file `$2` exists, and prints their number. A separate
/// process: a child of this process, when it closes an inherited file, could wait for the service
/// that it is about to become.
const CREATE_FILES: &str = r#"set -e
i=0
while [ ! -e "$2" ]; do
    d="$1/d$((i / 50))"
    if [ $((i % 50)) -eq 0 ]; then mkdir "$d"; fi
    printf "content of %s" $i > "$d/f$i"
    i=$((i + 1))
done
echo $i"#;

fn killed_services(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 1, storage: 1, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "promises", shape)?;
    let scratch = stage.scratch("stops")?;
    for round in stage.rounds(ROUNDS) {
        for part in [Part::Metadata(0), Part::Management] {
            let folders = cluster.shared_folder(&format!("r{round}-{part:?}"))?;
            let stop = scratch.join(format!("r{round}-{part:?}"));
            let mut makes = Command::new("sh");
            makes.args(["-c", CREATE_FILES, "sh"]).arg(&folders[0]).arg(&stop);
            let makes = makes.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().at("sh")?;
            thread::sleep(FAULT);
            let injected = cluster.inject(part, Fault::Killed);
            thread::sleep(FAULT / 2);
            let repaired = injected.and_then(|()| cluster.repair(part, Fault::Killed));
            thread::sleep(2 * FAULT);
            fs::write(&stop, "").at(stop.display())?;
            let made = makes.wait_with_output().at("sh")?;
            repaired?;
            let errors = String::from_utf8_lossy(&made.stderr);
            ensure!(made.status.success(), "files can't be made beside {part:?}: {errors}");
            let said = String::from_utf8_lossy(&made.stdout);
            let made: usize = said.trim().parse().map_err(|_| format!("{said:?} is no number"))?;
            ensure!(made > FILES_PER_DIR, "only {made} files were made beside {part:?}");
            for number in 0..made {
                let path = folders[1].join(format!("d{}/f{number}", number / FILES_PER_DIR));
                let found = fs::read_to_string(&path).at(path.display())?;
                ensure_eq!(found, format!("content of {number}"), "{}", path.display());
            }
            cluster.wait_until_healthy()?;
            cluster.ensure_clean()?;
        }
    }
    cluster.stop()
}
