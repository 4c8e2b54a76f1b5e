//! The search for damage: what is done to chunk files on one node's disk behind its back is found by it, and made right from other nodes.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::{Cluster, Part, Shape};
use crate::process;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[TestCase {
    name: "mirrored_damage_is_searched_and_mended",
    scope: Scope::Own,
    minutes: 6,
    run: damage_is_searched,
}];

/// Nodes: more than a group has members, so that the damaged one is primary of some and second of others.
const STORAGE: u8 = 3;
/// Files in the short and in the long form.
const FILES: (u64, u64) = (30, 1000);
const FILE_BYTES: usize = 150_000;
const DEADLINE: Duration = Duration::from_secs(300);

fn damage_is_searched(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 1, timeout: None };
    let mut cluster = Cluster::build(stage, "scrub", shape)?;
    cluster.mirror_everything(2)?;
    let folder = cluster.shared_folder("files")?.remove(0);
    let files = if stage.full { FILES.1 } else { FILES.0 };
    let content = |file: u64| Rng::new(file + 1).bytes(FILE_BYTES);
    for file in 0..files {
        let path = folder.join(file.to_string());
        fs::write(&path, content(file)).at(path.display())?;
    }
    cluster.ensure_copies_are_equal()?;
    // A node that runs has its files open, and one that is killed takes what it was just writing as it finds it.
    cluster.service(Part::Storage(0)).terminate().map(drop)?;
    let spoilt = spoil_all(&cluster.folder(cluster.node(Part::Storage(0)))?.join("target/groups"))?;
    ensure!(spoilt > files / 4, "only {spoilt} chunk files are on this node");
    cluster.restart(Part::Storage(0))?;
    cluster.wait_until_copies_are_good()?;
    // Some are read before the search comes to them.
    for file in (0..files).step_by(3) {
        let path = folder.join(file.to_string());
        ensure!(fs::read(&path).at(path.display())? == content(file), "file {file} isn't what was written");
    }
    cluster.ask_management(|management| cluster.commands.scrub(management, "start"))?;
    let mut told = Value::Null;
    let has_ended = process::eventually(DEADLINE, || {
        cluster.scrubs().is_ok_and(|scrubs| {
            told = scrubs;
            let targets = told["targets"].as_array().map_or(&[][..], Vec::as_slice);
            let is_done = |t: &Value| t["asked"] == told["settings"]["asked"] && t["is_running"] == false;
            targets.len() == usize::from(STORAGE) && targets.iter().all(is_done)
        })
    });
    ensure!(has_ended, "the search doesn't end: {told}\n    {}", cluster.log());
    let sum = |field: &str| -> u64 {
        told["targets"].as_array().into_iter().flatten().filter_map(|target| target[field].as_u64()).sum()
    };
    ensure_eq!(sum("damaged"), sum("mended"), "what was found and what was mended, of {told}");
    ensure!(sum("mended") >= spoilt, "{spoilt} chunk files were spoilt, and mended were only {told}");
    cluster.ensure_copies_are_equal()?;
    for file in 0..files {
        let path = folder.join(file.to_string());
        ensure!(fs::read(&path).at(path.display())? == content(file), "file {file} isn't what was written");
    }
    cluster.ensure_clean()?;
    cluster.stop()
}

/// Does something to each chunk file below a folder; how many there are.
fn spoil_all(root: &Path) -> TestResult<u64> {
    let (mut folders, mut files) = (vec![root.to_path_buf()], Vec::<PathBuf>::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).at(folder.display())?.flatten() {
            let path = entry.path();
            match path.file_name().and_then(|name| name.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some(name) if name.len() == 16 => files.push(path),
                _ => {}
            }
        }
    }
    for (at, path) in files.iter().enumerate() {
        let open = File::options().write(true).open(path).at(path.display())?;
        match at % 4 {
            0 => open.write_all_at(b"not what was written", 5000 + at as u64).at(path.display())?,
            1 => open.set_len(at as u64 * 100).at(path.display())?,
            2 => fs::remove_file(path).at(path.display())?,
            _ => {
                fs::remove_file(path).at(path.display())?;
                fs::remove_file(path.with_extension("sum")).at(path.display())?;
            }
        }
    }
    Ok(files.len() as u64)
}

impl Cluster {
    /// How far the search for damage is.
    fn scrubs(&self) -> TestResult<Value> {
        let told = self.ask_management(|management| self.commands.scrub(management, "status"))?;
        serde_json::from_str(&told).map_err(|error| format!("weft scrub status: no JSON: {error}").into())
    }
}
