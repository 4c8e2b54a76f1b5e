//! File content: holes, preallocation, mappings, unaligned offsets, several writers.

use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno};
use super::stage::Stage;
use super::{Rng, Scope, TestCase};
use crate::{helper, process, sys};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "holes", scope: Scope::Mounted, minutes: 1, run: holes },
    TestCase { name: "fallocate_modes", scope: Scope::Mounted, minutes: 1, run: fallocate_modes },
    TestCase { name: "mapped_files", scope: Scope::Mounted, minutes: 1, run: mapped_files },
    TestCase {
        name: "mapping_survives_its_process",
        scope: Scope::Mounted,
        minutes: 1,
        run: mapping_survives,
    },
    TestCase { name: "growing_over_every_border", scope: Scope::Mounted, minutes: 1, run: growing },
    TestCase { name: "truncate_and_extend", scope: Scope::Mounted, minutes: 1, run: truncate_and_extend },
    TestCase { name: "far_offsets", scope: Scope::Mounted, minutes: 1, run: far_offsets },
    TestCase { name: "direct_and_buffered", scope: Scope::Mounted, minutes: 1, run: direct_and_buffered },
    TestCase {
        name: "direct_writes_beside_readers",
        scope: Scope::Mounted,
        minutes: 2,
        run: direct_writes_beside_readers,
    },
    TestCase { name: "copy_file_range", scope: Scope::Mounted, minutes: 1, run: copy_file_range },
    TestCase { name: "appenders_never_overlap", scope: Scope::Mounted, minutes: 2, run: appenders },
    TestCase { name: "writers_of_one_file", scope: Scope::Mounted, minutes: 2, run: writers_of_one_file },
];

const MIB: u64 = 1 << 20;

fn read_write(path: &Path) -> TestResult<File> {
    File::options().read(true).write(true).create(true).truncate(true).open(path).at(path.display())
}

/// Compares without printing megabytes.
fn ensure_same(found: &[u8], expected: &[u8], what: &str) -> TestResult {
    ensure_eq!(found.len(), expected.len(), "length of {what}");
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        Some(at) => Err(format!("{what} differs from byte {at} on").into()),
        None => Ok(()),
    }
}

fn holes(stage: &Stage) -> TestResult {
    let dir = stage.folder("holes")?;
    holes_of_a_file_that_is_written(&dir.join("sparse"))?;
    let file = read_write(&dir.join("file"))?;
    file.set_len(16 * MIB).at("truncate")?;
    file.write_all_at(&[1; 4096], 4 * MIB).at("write")?;
    file.write_all_at(&[2; 4096], 9 * MIB).at("write")?;
    file.sync_all().at("fsync")?;
    let data = |from| sys::seek(&file, from, libc::SEEK_DATA);
    let hole = |from| sys::seek(&file, from, libc::SEEK_HOLE);
    // A file system may report a hole as data, but never data as a hole: these checks hold on all
    // of them.
    ensure!(data(0).at("SEEK_DATA")? <= 4 * MIB, "SEEK_DATA skips data");
    ensure_eq!(data(4 * MIB + 100).at("SEEK_DATA")?, 4 * MIB + 100, "SEEK_DATA within data");
    ensure!(hole(4 * MIB).at("SEEK_HOLE")? >= 4 * MIB + 4096, "SEEK_HOLE within data");
    ensure!(data(5 * MIB).at("SEEK_DATA")? <= 9 * MIB, "SEEK_DATA skips the second piece");
    expect_errno(data(16 * MIB), libc::ENXIO, "SEEK_DATA at the end")?;
    expect_errno(hole(17 * MIB), libc::ENXIO, "SEEK_HOLE beyond the end")?;
    // These checks verify that holes are reported.
    ensure_eq!(data(0).at("SEEK_DATA")?, 4 * MIB, "first data");
    ensure_eq!(hole(0).at("SEEK_HOLE")?, 0, "first hole");
    ensure_eq!(hole(9 * MIB).at("SEEK_HOLE")?, 9 * MIB + 4096, "hole after the second piece");
    let blocks = file.metadata().at("fstat")?.blocks();
    ensure!(blocks < MIB / 512, "8 KiB of data take {blocks} blocks");
    let mut zeros = vec![9; MIB as usize];
    file.read_exact_at(&mut zeros, 6 * MIB).at("read")?;
    ensure!(zeros.iter().all(|byte| *byte == 0), "a hole doesn't read as zeros");
    Ok(())
}

/// Programs that copy a sparse file check its block count first, also during and right after
/// writes.
fn holes_of_a_file_that_is_written(path: &Path) -> TestResult {
    const LENGTH: u64 = 1 << 30;
    const FEW: u64 = MIB / 512;
    let file = read_write(path)?;
    file.write_all_at(&[1], LENGTH - 1).at("write")?;
    let check_holes = |when: &str| -> TestResult {
        for meta in [file.metadata().at("fstat")?, fs::metadata(path).at("stat")?] {
            ensure_eq!(meta.len(), LENGTH, "length {when}");
            ensure!((1..FEW).contains(&meta.blocks()), "one byte takes {} blocks {when}", meta.blocks());
        }
        let data = sys::seek(&file, 0, libc::SEEK_DATA).at("SEEK_DATA")?;
        ensure!((LENGTH - MIB..LENGTH).contains(&data), "first data at {data} {when}");
        ensure_eq!(sys::seek(&file, 0, libc::SEEK_HOLE).at("SEEK_HOLE")?, 0, "first hole {when}");
        Ok(())
    };
    check_holes("after a write")?;
    file.write_all_at(&[2; 8192], 0).at("write")?;
    ensure!(file.metadata().at("fstat")?.blocks() < FEW, "a second piece takes all");
    file.set_len(LENGTH / 2).and_then(|()| file.set_len(LENGTH)).at("ftruncate")?;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(&file, punch, 0, 8192).at("punch")?;
    file.write_all_at(&[1], LENGTH - 1).at("write")?;
    check_holes("before fsync")?;
    file.sync_all().at("fsync")?;
    check_holes("after fsync")?;
    drop(file);
    let meta = fs::metadata(path).at("stat")?;
    ensure!((1..FEW).contains(&meta.blocks()), "one byte takes {} blocks after close", meta.blocks());
    fs::remove_file(path).at("unlink")
}

fn fallocate_modes(stage: &Stage) -> TestResult {
    let dir = stage.folder("fallocate_modes")?;
    let path = dir.join("file");
    let file = read_write(&path)?;
    sys::fallocate(&file, 0, 0, 3 * MIB).at("fallocate")?;
    ensure_eq!(file.metadata().at("fstat")?.len(), 3 * MIB, "length after fallocate");
    sys::fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 3 * MIB, MIB).at("KEEP_SIZE")?;
    ensure_eq!(file.metadata().at("fstat")?.len(), 3 * MIB, "length after KEEP_SIZE");
    let mut expected = Rng::new(1).bytes(3 * MIB as usize);
    file.write_all_at(&expected, 0).at("write")?;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // Neither end is block-aligned, and the range crosses a chunk boundary.
    for (mode, from, length) in [
        (punch, MIB - 5000, 10_001),
        (libc::FALLOC_FL_ZERO_RANGE, 2 * MIB + 1, 77_777),
        (libc::FALLOC_FL_ZERO_RANGE, 3 * MIB - 10, 5000),
        (libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 3 * MIB + 4000, MIB),
    ] {
        sys::fallocate(&file, mode, from, length).at(format!("fallocate mode {mode} at {from}"))?;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        if !keeps_size && expected.len() < (from + length) as usize {
            expected.resize((from + length) as usize, 0);
        }
        let end = expected.len().min((from + length) as usize);
        let start = end.min(from as usize);
        expected[start..end].fill(0);
        ensure_same(
            &fs::read(&path).at("read")?,
            &expected,
            &format!("the file after mode {mode} at {from}"),
        )?;
    }
    expect_errno(sys::fallocate(&file, 0, 0, 0), libc::EINVAL, "fallocate of nothing")?;
    expect_errno(
        sys::fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE, 0, 4096),
        libc::EOPNOTSUPP,
        "PUNCH_HOLE without KEEP_SIZE",
    )
}

fn mapped_files(stage: &Stage) -> TestResult {
    let dir = stage.folder("mapped_files")?;
    let length = 3 * MIB as usize + 777;
    let path = dir.join("file");
    let mut expected = Rng::new(2).bytes(length);
    fs::write(&path, &expected).at("file")?;
    let file = File::options().read(true).write(true).open(&path).at("open")?;
    let mut shared = sys::Mapping::new(&file, length, libc::MAP_SHARED).at("MAP_SHARED")?;
    let mut private = sys::Mapping::new(&file, length, libc::MAP_PRIVATE).at("MAP_PRIVATE")?;
    ensure_same(&shared.read(0, length), &expected, "the shared mapping")?;
    private.write(100, b"mine alone");
    shared.write(MIB as usize - 3, b"for all");
    expected[MIB as usize - 3..MIB as usize + 4].copy_from_slice(b"for all");
    shared.sync().at("msync")?;
    ensure_same(&fs::read(&path).at("read")?, &expected, "the file after msync")?;
    ensure_eq!(private.read(100, 10), b"mine alone", "the private mapping");
    // An existing shared mapping shows changes by write().
    file.write_all_at(b"written", 2 * MIB).at("write")?;
    ensure_eq!(shared.read(2 * MIB as usize, 7), b"written", "a write, seen through the mapping");
    Ok(())
}

fn mapping_survives(stage: &Stage) -> TestResult {
    let dir = stage.folder("mapping_survives")?;
    let (path, length) = (dir.join("file"), 2 * MIB as usize + 5);
    read_write(&path)?.set_len(length as u64).at("truncate")?;
    let mut child = Command::new(process::this_program());
    child.args(["helper", "map-write", "--length", &length.to_string()]).arg(&path);
    process::run_ok(&mut child, Duration::from_secs(30))?;
    ensure_same(&fs::read(&path).at("read")?, &helper::mapped_content(length), "the mapped file")
}

/// Small appends and overwrites while a file grows from inline to several chunks.
fn growing(stage: &Stage) -> TestResult {
    let dir = stage.folder("growing")?;
    let path = dir.join("file");
    let mut file = read_write(&path)?;
    let mut rng = Rng::new(3);
    let mut expected: Vec<u8> = Vec::new();
    while expected.len() < 5 * MIB as usize {
        let border = [4096, 65_536, MIB as usize].map(|step| expected.len().next_multiple_of(step));
        let target = border[rng.below(3) as usize] + rng.below(7) as usize;
        let piece = rng.bytes(target.saturating_sub(expected.len() + 3).max(1));
        file.seek(SeekFrom::End(0)).at("seek")?;
        file.write_all(&piece).at("append")?;
        expected.extend(&piece);
        let at = rng.below(expected.len() as u64) as usize;
        let patch = rng.bytes(rng.clone().below(5000) as usize + 1);
        file.write_all_at(&patch, at as u64).at("overwrite")?;
        let end = (at + patch.len()).max(expected.len());
        expected.resize(end, 0);
        expected[at..at + patch.len()].copy_from_slice(&patch);
        ensure_eq!(fs::metadata(&path).at("stat")?.len(), expected.len() as u64, "length while it grows");
    }
    ensure_same(&fs::read(&path).at("read")?, &expected, "the file")?;
    drop(file);
    let mut again = Vec::new();
    File::open(&path).and_then(|mut file| file.read_to_end(&mut again)).at("read again")?;
    ensure_same(&again, &expected, "the file, opened again")
}

fn truncate_and_extend(stage: &Stage) -> TestResult {
    let dir = stage.folder("truncate_and_extend")?;
    let path = dir.join("file");
    for start in [100u64, 4096, 4097, MIB, 3 * MIB + 1234] {
        let file = read_write(&path)?;
        file.write_all_at(&vec![0xff; start as usize], 0).at("write")?;
        for cut in [start - 1, start / 2, 1] {
            file.set_len(cut).at("cut")?;
            file.set_len(start + 70_000).at("extend")?;
            let mut expected = vec![0xff; cut as usize];
            expected.resize(start as usize + 70_000, 0);
            let what = format!("{start} bytes cut to {cut} and extended");
            ensure_same(&fs::read(&path).at("read")?, &expected, &what)?;
        }
    }
    Ok(())
}

fn far_offsets(stage: &Stage) -> TestResult {
    let dir = stage.folder("far_offsets")?;
    let path = dir.join("file");
    let file = read_write(&path)?;
    let places = [u64::from(u32::MAX) - 3, (1 << 40) - 4, 7 << 40];
    for at in places {
        file.write_all_at(b"far away", at).at(format!("write at {at}"))?;
    }
    file.sync_all().at("fsync")?;
    ensure_eq!(fs::metadata(&path).at("stat")?.len(), (7 << 40) + 8, "length");
    for at in places {
        let mut read = [0; 8];
        file.read_exact_at(&mut read, at).at(format!("read at {at}"))?;
        ensure_eq!(&read, b"far away", "content at {at}");
    }
    file.set_len(5 << 30).at("truncate")?;
    ensure_eq!(file.read_at(&mut [0; 8], (1 << 40) - 4).at("read")?, 0, "bytes read beyond the end");
    file.set_len(2 << 40).at("extend")?;
    let mut read = [9; 8];
    file.read_exact_at(&mut read, (1 << 40) - 4).at("read")?;
    ensure_eq!(read, [0; 8], "what was cut off and is within the file again");
    Ok(())
}

fn direct_and_buffered(stage: &Stage) -> TestResult {
    let dir = stage.folder("direct_and_buffered")?;
    let path = dir.join("file");
    let buffered = read_write(&path)?;
    let mut options = File::options();
    let direct = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).at("O_DIRECT")?;
    let mut page = sys::AlignedBuffer::new(2 * MIB as usize);
    let mut rng = Rng::new(4);
    let mut expected = rng.bytes(4 * MIB as usize);
    buffered.write_all_at(&expected, 0).at("write")?;
    for round in 0..20u64 {
        // Each sees what the other has just written.
        let length = 4096 * (1 + rng.below(300)) as usize;
        let at = 4096 * rng.below((expected.len() - length) as u64 / 4096);
        let range = at as usize..at as usize + length;
        let fresh = rng.bytes(length);
        expected[range.clone()].copy_from_slice(&fresh);
        let mut seen = vec![0; length];
        if round % 2 == 0 {
            page.bytes()[..length].copy_from_slice(&fresh);
            direct.write_all_at(&page.bytes()[..length], at).at("direct write")?;
            buffered.read_exact_at(&mut seen, at).at("buffered read")?;
        } else {
            buffered.write_all_at(&fresh, at).at("buffered write")?;
            direct.read_exact_at(&mut page.bytes()[..length], at).at("direct read")?;
            seen.copy_from_slice(&page.bytes()[..length]);
        }
        ensure_same(&seen, &fresh, &format!("what the other one sees in round {round}"))?;
    }
    ensure_same(&fs::read(&path).at("read")?, &expected, "the file")
}

/// Programs read a file through the page cache while another one writes it with direct I/O. Written
/// data is visible to all as soon as the write has returned, whatever the readers have loaded into
/// the cache meanwhile.
fn direct_writes_beside_readers(stage: &Stage) -> TestResult {
    const LENGTH: usize = 640 << 10;
    let path = stage.folder("direct_writes_beside_readers")?.join("file");
    fs::write(&path, vec![0; LENGTH]).at("file")?;
    let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path).at("O_DIRECT")?;
    let (ended, readers) = (AtomicBool::new(false), 2);
    std::thread::scope(|threads| {
        for _ in 0..readers {
            threads.spawn(|| {
                while !ended.load(Relaxed) {
                    drop(fs::read(&path));
                }
            });
        }
        let write_and_look = || {
            let (aio, mut page) = (sys::Aio::new().at("io_setup")?, sys::AlignedBuffer::new(LENGTH));
            for round in 1..=2000u32 {
                page.bytes().fill(round as u8);
                aio.write_all_at(&direct, &mut page, 0).at("direct write")?;
                let seen = fs::read(&path).at("buffered read")?;
                let old = seen.iter().position(|byte| *byte != round as u8);
                ensure!(old.is_none(), "round {round}: byte {} is older", old.unwrap_or(0));
            }
            Ok(())
        };
        let outcome = write_and_look();
        ended.store(true, Relaxed);
        outcome
    })
}

fn copy_file_range(stage: &Stage) -> TestResult {
    let dir = stage.folder("copy_file_range")?;
    let source = Rng::new(5).bytes(5 * MIB as usize / 2);
    fs::write(dir.join("from"), &source).at("from")?;
    let from = File::open(dir.join("from")).at("from")?;
    let to = read_write(&dir.join("to"))?;
    let (mut done, start) = (0u64, 1001u64);
    loop {
        let copied =
            sys::copy_file_range(&from, start + done, &to, 7 + done, 700_000).at("copy_file_range")?;
        if copied == 0 {
            break;
        }
        done += copied as u64;
    }
    let mut expected = vec![0; 7];
    expected.extend(&source[start as usize..]);
    ensure_same(&fs::read(dir.join("to")).at("to")?, &expected, "the copy")
}

fn appenders(stage: &Stage) -> TestResult {
    const WRITERS: u64 = 4;
    const LINES: u64 = 2000;
    let dir = stage.folder("appenders")?;
    let path = dir.join("file");
    read_write(&path)?;
    let exe = process::this_program();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let start = |id: u64| {
            let mut child = Command::new(exe);
            child
                .args(["helper", "append", "--id", &id.to_string(), "--lines", &LINES.to_string()])
                .arg(&path);
            scope.spawn(move || process::run_ok(&mut child, Duration::from_secs(100)))
        };
        let threads: Vec<_> = (0..WRITERS).map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for outcome in outcomes {
        outcome.map_err(|_| "an appender's thread panicked".to_string())??;
    }
    let text = fs::read_to_string(&path).at("read")?;
    let mut next = [0; WRITERS as usize];
    for line in text.split_inclusive('\n') {
        let id: usize = line.split(':').next().and_then(|id| id.parse().ok()).unwrap_or(usize::MAX);
        ensure!(id < next.len(), "a torn line: {line:?}");
        ensure_eq!(line, helper::appended_line(id as u64, next[id]), "the next line of appender {id}");
        next[id] += 1;
    }
    ensure_eq!(next, [LINES; WRITERS as usize], "lines by appender");
    Ok(())
}

fn writers_of_one_file(stage: &Stage) -> TestResult {
    const WRITERS: u64 = 4;
    const RECORDS: u64 = 400;
    const RECORD: u64 = 10_007;
    let dir = stage.folder("writers_of_one_file")?;
    let path = dir.join("file");
    read_write(&path)?;
    // Interleaved records that share blocks with records of the other writers.
    let write_mine = |writer: u64| {
        let file = File::options().write(true).open(&path)?;
        for record in (writer..RECORDS).step_by(WRITERS as usize) {
            file.write_all_at(&Rng::new(record).bytes(RECORD as usize), record * RECORD)?;
        }
        Ok::<(), std::io::Error>(())
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write_mine(writer))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for outcome in outcomes {
        outcome.map_err(|_| "a writer panicked".to_string())?.at("write")?;
    }
    let expected: Vec<u8> = (0..RECORDS).flat_map(|record| Rng::new(record).bytes(RECORD as usize)).collect();
    ensure_same(&fs::read(&path).at("read")?, &expected, "the file")
}
