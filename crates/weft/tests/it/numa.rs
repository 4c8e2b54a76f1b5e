//! A node that is bound to a NUMA zone of this machine: its threads, its targets, and what it
//! refuses.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Generous: test machines are busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A zone that no machine has.
const NOWHERE: &str = "999";

fn weft(arguments: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments).arg("--dir").arg(dir).output().unwrap()
}

fn done(arguments: &[&str], dir: &Path) -> String {
    let output = weft(arguments, dir);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], dir: &Path) -> String {
    let output = weft(arguments, dir);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Parses a CPU list of the kernel.
fn cpus(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

/// Returns a zone of this machine and its CPUs; `None` if the kernel knows no zones.
fn some_zone() -> Option<(String, BTreeSet<usize>)> {
    let zones = fs::read_to_string("/sys/devices/system/node/has_cpu").ok()?;
    let zone = cpus(&zones).first()?.to_string();
    let list = fs::read_to_string(format!("/sys/devices/system/node/node{zone}/cpulist")).unwrap();
    Some((zone, cpus(&list)))
}

struct Node {
    process: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Node {
    /// Starts a node on a single CPU, so that the effect of the binding is visible.
    fn serve(dir: &Path, zone: &str, cpu: usize) -> Node {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), env!("CARGO_BIN_EXE_weft"), "serve", "--numa", zone, "--dir"]);
        let log = fs::File::create(dir.join("output")).unwrap();
        let process = command.arg(dir).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let node = Node { process };
        let began = Instant::now();
        while !weft(&["status"], dir).status.success() {
            assert!(began.elapsed() < TEST_TIMEOUT, "{}", fs::read_to_string(dir.join("output")).unwrap());
            sleep(Duration::from_millis(100));
        }
        node
    }

    /// Returns the allowed CPUs of each thread.
    fn allowed(&self) -> Vec<BTreeSet<usize>> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let of_thread = |thread: PathBuf| {
            let status = fs::read_to_string(thread.join("status")).ok()?;
            Some(cpus(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?))
        };
        threads.filter_map(|thread| of_thread(thread.unwrap().path())).collect()
    }
}

#[test]
fn a_node_keeps_to_its_zone_and_to_the_targets_of_it() {
    let Some((zone, zone_cpus)) = some_zone() else {
        println!("this kernel knows no NUMA zones");
        return;
    };
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("node");
    let at = |name: &str| base.path().join(name).to_str().unwrap().to_string();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    done(&["cluster", "init", "--name", "numa", "--listen", &address], &dir);

    let error = refused(&["target", "add", &at("nowhere"), "--numa", NOWHERE], &dir);
    assert!(error.contains("no NUMA zone 999") && error.contains("hint:"), "{error}");
    let error = refused(&["serve", "--numa", NOWHERE], &dir);
    assert!(error.contains("no NUMA zone 999") && error.contains("hint:"), "{error}");
    done(&["target", "add", &at("near"), "--numa", &zone], &dir);
    done(&["target", "add", &at("anywhere")], &dir);
    let file = dir.join("node.toml");
    let elsewhere = format!("[[target]]\npath = {:?}\nnuma = {NOWHERE}\n", at("elsewhere"));
    fs::write(&file, fs::read_to_string(&file).unwrap() + &elsewhere).unwrap();

    let node = Node::serve(&dir, &zone, *zone_cpus.first().unwrap());
    let allowed = node.allowed();
    assert!(allowed.iter().all(|cpus| cpus.is_subset(&zone_cpus)), "{allowed:?} in {zone_cpus:?}");
    assert!(allowed.contains(&zone_cpus), "{allowed:?}: some thread may use all of {zone_cpus:?}");
    let reached: BTreeSet<usize> = allowed.into_iter().filter(|cpus| cpus.len() == 1).flatten().collect();
    assert!(
        zone_cpus.len() == 1 || reached == zone_cpus,
        "threads are pinned to {reached:?} of {zone_cpus:?}"
    );

    let listed: serde_json::Value = serde_json::from_str(&done(&["target", "list", "--json"], &dir)).unwrap();
    let number: u64 = zone.parse().unwrap();
    let zones: Vec<Option<u64>> = listed.as_array().unwrap().iter().map(|t| t["numa"].as_u64()).collect();
    assert_eq!(zones, [Some(number), None], "{listed}");
    assert!(!Path::new(&at("elsewhere")).exists());
    let log = fs::read_to_string(dir.join("output")).unwrap();
    assert!(log.contains("of NUMA zone 999, and this node is bound to"), "{log}");
    let status: serde_json::Value = serde_json::from_str(&done(&["status", "--json"], &dir)).unwrap();
    assert_eq!(status["numa"].as_u64(), Some(number));
}
