//! The workloads, and the parsing of fio's results.

use crate::process;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Deadline of one workload.
const DEADLINE: Duration = Duration::from_secs(900);

/// Ticks per second in /proc/stat: USER_HZ, which is the same on all Linux systems.
const TICKS_PER_S: f64 = 100.0;

/// Sizes of the workloads.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Total size of a sequential workload in MiB.
    pub(super) mib: u64,
    /// Seconds of a time-limited workload.
    pub(super) seconds: u64,
    /// Files per job.
    pub(super) files: u64,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// MiB or operations per second.
    pub(super) rate: f64,
    /// CPU time of the machine per MiB or operation, in microseconds.
    pub(super) cpu_us: f64,
}

/// Unit of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    MibPerS,
    PerS,
}

/// The files of a workload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    /// A large file per job.
    Own,
    /// One file, with a separate part per job.
    Shared,
    /// One file per job, in 4 KiB transfers.
    Random,
    /// Many small files, all in one directory.
    Small,
}

/// One row of the table.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    files: Files,
    /// fio options that create required files.
    before: Option<&'static str>,
    /// fio options. `{all}` is the total size, `{part}` a quarter of it, `{time}` a time limit.
    words: &'static str,
}

const WRITE_1: &str = "--rw=write --numjobs=1 --size={all} --end_fsync=1";
const WRITE_4: &str = "--rw=write --numjobs=4 --size={part} --end_fsync=1";
const CREATE: &str = "--ioengine=psync --rw=write --bs=4k --create_on_open=1";
/// Creates the files for random workloads by large transfers.
const FILL: &str = "--rw=write --bs=1M --ioengine=psync --numjobs=4 --end_fsync=1";

/// All workloads, in the order of the table. fio preallocates files that it writes, except for
/// those of many jobs.
pub(super) const WORKLOADS: &[Workload] = &[
    bytes("sequential write, 1 job", Files::Own, None, WRITE_1),
    bytes("sequential read, 1 job", Files::Own, Some(WRITE_1), "--rw=read --numjobs=1 --size={all} {time}"),
    bytes("sequential write, 4 jobs", Files::Own, None, WRITE_4),
    bytes("sequential read, 4 jobs", Files::Own, Some(WRITE_4), "--rw=read --numjobs=4 --size={part} {time}"),
    bytes("write, 4 jobs, one file", Files::Shared, None, WRITE_4),
    bytes(
        "read, 4 jobs, one file",
        Files::Shared,
        Some(WRITE_4),
        "--rw=read --numjobs=4 --size={part} {time}",
    ),
    random("4 KiB random read, 4 x 16", "--rw=randread --ioengine=libaio --iodepth=16 --numjobs=4 {time}"),
    random("4 KiB random write, 4 x 16", "--rw=randwrite --ioengine=libaio --iodepth=16 --numjobs=4 {time}"),
    random(
        "4 KiB random 70/30, 4 x 16",
        "--rw=randrw --rwmixread=70 --ioengine=libaio --iodepth=16 --numjobs=4 {time}",
    ),
    random("4 KiB random read, depth 1", "--rw=randread --ioengine=psync --numjobs=1 {time}"),
    random("4 KiB random write, depth 1", "--rw=randwrite --ioengine=psync --numjobs=1 {time}"),
    small("create empty files, 4 jobs", None, "--ioengine=filecreate --create_on_open=1"),
    small("create + write 4 KiB, 4 jobs", None, CREATE),
    small("stat, 4 jobs", Some(CREATE), "--ioengine=filestat"),
    small("open + read 4 KiB, 4 jobs", Some(CREATE), "--ioengine=psync --rw=read --bs=4k --invalidate=1"),
    small("delete, 4 jobs", Some(CREATE), "--ioengine=filedelete"),
];

const fn bytes(
    name: &'static str,
    files: Files,
    before: Option<&'static str>,
    words: &'static str,
) -> Workload {
    Workload { name, unit: Unit::MibPerS, files, before, words }
}

const fn random(name: &'static str, words: &'static str) -> Workload {
    Workload { name, unit: Unit::PerS, files: Files::Random, before: Some(FILL), words }
}

const fn small(name: &'static str, before: Option<&'static str>, words: &'static str) -> Workload {
    Workload { name, unit: Unit::PerS, files: Files::Small, before, words }
}

impl Files {
    /// Returns fio options.
    fn words(self) -> &'static str {
        match self {
            Files::Own => "--bs=1M --ioengine=psync --direct=1 --filename_format=own.$jobnum",
            Files::Shared => {
                "--bs=1M --ioengine=psync --direct=1 --filename=shared --offset_increment={part}"
            }
            Files::Random => "--bs=4k --direct=1 --size={part} --filename_format=random.$jobnum",
            Files::Small => {
                "--filesize=4k --openfiles=1 --numjobs=4 --nrfiles={files} --file_service_type=sequential --filename_format=f.$jobnum.$filenum"
            }
        }
    }
}

impl Workload {
    /// Runs the workload in a new directory below `place`, and removes the directory.
    pub(super) fn run(&self, place: &Path, sizes: Sizes) -> Result<Sample, String> {
        let dir = place.join("work");
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let outcome = self.measure(&dir, sizes);
        let removed = fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()));
        let sample = outcome?;
        removed.map(|()| sample)
    }

    fn measure(&self, dir: &Path, sizes: Sizes) -> Result<Sample, String> {
        if let Some(before) = self.before {
            self.fio(before, dir, sizes)?;
            process::run_ok(Command::new("sync").arg("--file-system").arg(dir), DEADLINE)?;
        }
        let busy = busy_s()?;
        let told = self.fio(self.words, dir, sizes)?;
        let cpu_s = busy_s()? - busy;
        let (rate, done) = self.figures(&told)?;
        Ok(Sample { rate, cpu_us: cpu_s * 1e6 / done.max(1.0) })
    }

    fn fio(&self, words: &str, dir: &Path, sizes: Sizes) -> Result<Value, String> {
        let words = [
            "--name=bench --group_reporting --output-format=json --fallocate=none --norandommap --randrepeat=0",
            self.files.words(),
            words,
        ];
        let part = format!("{}M", sizes.mib.div_ceil(4));
        let words = words
            .join(" ")
            .replace("{all}", &format!("{}M", sizes.mib))
            .replace("{part}", &part)
            .replace("{time}", &format!("--time_based --runtime={}", sizes.seconds))
            .replace("{files}", &sizes.files.to_string());
        // The directory comes first: fio creates a file whose name precedes it in the working
        // directory.
        let mut command = Command::new("fio");
        let done = process::run_ok(command.arg("--directory").arg(dir).args(words.split(' ')), DEADLINE)?;
        // Notes may precede the JSON.
        let json = done.stdout.find('{').map_or("", |at| &done.stdout[at..]);
        serde_json::from_str(json).map_err(|error| format!("fio printed no JSON: {error}"))
    }

    /// Returns the rate and the total amount, in the row's unit.
    fn figures(&self, told: &Value) -> Result<(f64, f64), String> {
        let job = &told["jobs"][0];
        let sum = |key: &str| {
            let of = |side: &str| job[side][key].as_f64().unwrap_or(0.0);
            of("read") + of("write")
        };
        let (rate, done) = match self.unit {
            Unit::MibPerS => (sum("bw_bytes") / f64::from(1 << 20), sum("io_bytes") / f64::from(1 << 20)),
            Unit::PerS => (sum("iops"), sum("total_ios")),
        };
        match rate > 0.0 && job["error"].as_i64() == Some(0) {
            true => Ok((rate, done)),
            false => Err(format!("fio did no I/O, or failed with error {}", job["error"])),
        }
    }
}

/// Returns the seconds that the cores of this machine have been busy since boot.
fn busy_s() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    busy_of(&stat).ok_or_else(|| "/proc/stat has no line for all cores".into())
}

/// Sums user, nice, system, interrupt and stolen time of all cores: the fields of the first line
/// except idle and iowait (proc(5)).
fn busy_of(stat: &str) -> Option<f64> {
    let fields: Vec<f64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    let at = |index: usize| fields.get(index).copied();
    Some((at(0)? + at(1)? + at(2)? + at(5)? + at(6)? + at(7)?) / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cores_do_not_count() {
        let before = "cpu  100 0 50 1000 20 1 2 3 0 0\ncpu0 1 2 3\n";
        let after = "cpu  150 10 70 9000 90 1 2 13 0 0\n";
        let busy = busy_of(after).unwrap() - busy_of(before).unwrap();
        assert_eq!((busy * TICKS_PER_S).round(), 90.0);
        assert_eq!(busy_of("intr 1"), None);
    }

    /// All workloads run on a directory, leave no files, and have a rate.
    #[test]
    fn every_workload_runs() {
        let home = tempfile::tempdir().unwrap();
        let sizes = Sizes { mib: 16, seconds: 1, files: 20 };
        // Workloads without a time limit suffice to verify that fio accepts all kinds of options.
        for work in WORKLOADS.iter().filter(|work| !work.words.contains("{time}")) {
            let sample =
                work.run(home.path(), sizes).unwrap_or_else(|error| panic!("{}: {error}", work.name));
            assert!(sample.rate > 0.0 && sample.cpu_us >= 0.0, "{}: {sample:?}", work.name);
        }
        let random = WORKLOADS.iter().find(|work| work.name.contains("70/30")).unwrap();
        assert!(random.run(home.path(), sizes).unwrap().rate > 0.0);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
