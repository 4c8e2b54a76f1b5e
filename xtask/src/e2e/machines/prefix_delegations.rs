//! Two mounts fill one directory, each under a name-prefix delegation: lookups from any mount are
//! correct, and no closed file is lost.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::faults::Fault;
use super::{Cluster, Part, Shape};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[TestCase {
    name: "names_of_their_own_while_services_die",
    scope: Scope::Own,
    minutes: 4,
    run: killed_services,
}];

/// Kills of services in the short and the long form.
const ROUNDS: (u64, u64) = (1, 10);
/// Time that services are up before a kill.
const BEFORE: Duration = Duration::from_secs(3);
/// Time that they are down, and time between two checks of the directory: sometimes longer than the
/// pause of a client after a conflict.
const PAUSE: Duration = Duration::from_millis(1300);
/// Number of checks of the directory afterwards.
const CHECKS: usize = 4;

/// Creates files `$3.N` in the folder `$1` until the file `$2` exists, every third one with
/// `O_EXCL`, and prints their number. A separate process for the reason given in `async_create`.
const CREATE_PREFIXED: &str = r#"set -e
i=0
while [ ! -e "$2" ]; do
    if [ $((i % 3)) -eq 0 ]; then set -C; else set +C; fi
    printf "content of %s" $i > "$1/$3.$i"
    i=$((i + 1))
done
echo $i"#;

fn maker(folder: &Path, stop: &Path, prefix: &str) -> TestResult<Child> {
    let mut makes = Command::new("sh");
    makes.args(["-c", CREATE_PREFIXED, "sh"]).arg(folder).arg(stop).arg(prefix);
    makes.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().at("sh")
}

fn names(folder: &Path) -> TestResult<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(folder).at(folder.display())?;
    entries.map(|entry| entry.map(|entry| entry.file_name().into()).at(folder.display())).collect()
}

/// Checks, while files are created, that names never disappear and that every listed file can be
/// opened.
fn check_listing(folders: &[PathBuf], seen: &mut BTreeSet<PathBuf>) -> TestResult {
    for folder in folders {
        let now = names(folder)?;
        let gone: Vec<_> = seen.difference(&now).collect();
        ensure!(gone.is_empty(), "{} doesn't show any more: {gone:?}", folder.display());
        for new in now.difference(seen).take(5) {
            fs::metadata(folder.join(new)).at(folder.join(new).display())?;
        }
        *seen = now;
    }
    Ok(())
}

fn killed_services(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 1, storage: 1, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "ranges", shape)?;
    let scratch = stage.scratch("stops")?;
    for round in stage.rounds(ROUNDS) {
        for part in [Part::Metadata(0), Part::Management] {
            let folders = cluster.shared_folder(&format!("r{round}-{part:?}"))?;
            let stop = scratch.join(format!("r{round}-{part:?}"));
            let prefixes = ["r.a", "r.b"];
            let makers = [maker(&folders[0], &stop, prefixes[0])?, maker(&folders[1], &stop, prefixes[1])?];
            thread::sleep(BEFORE);
            let injected = cluster.inject(part, Fault::Killed);
            thread::sleep(PAUSE);
            let repaired = injected.and_then(|()| cluster.repair(part, Fault::Killed));
            let mut seen = BTreeSet::new();
            let mut checked = Ok(());
            for _ in 0..CHECKS {
                thread::sleep(PAUSE);
                checked = checked.and_then(|()| check_listing(&folders[..2], &mut seen));
            }
            fs::write(&stop, "").at(stop.display())?;
            let made = makers.map(|maker| maker.wait_with_output().at("sh"));
            repaired?;
            checked?;
            let mut all = BTreeSet::new();
            for (at, made) in made.into_iter().enumerate() {
                let made = made?;
                let errors = String::from_utf8_lossy(&made.stderr);
                ensure!(made.status.success(), "files can't be made beside {part:?}: {errors}");
                let said = String::from_utf8_lossy(&made.stdout);
                let count: usize = said.trim().parse().map_err(|_| format!("{said:?} is no number"))?;
                ensure!(count > 100, "only {count} files were made beside {part:?}");
                for number in 0..count {
                    let name = PathBuf::from(format!("{}.{number}", prefixes[at]));
                    let path = folders[1 - at].join(&name);
                    let found = fs::read_to_string(&path).at(path.display())?;
                    ensure_eq!(found, format!("content of {number}"), "{}", path.display());
                    all.insert(name);
                }
            }
            for folder in &folders[..2] {
                ensure_eq!(names(folder)?, all, "names in {}", folder.display());
            }
            cluster.wait_until_healthy()?;
            cluster.ensure_clean()?;
        }
    }
    cluster.stop()
}
