//! Page cache of a file that no other mount uses: pages stay cached beside writes and opens, and
//! recently written data is read ahead.

#![allow(unsafe_code, reason = "system calls that the standard library doesn't have")]

use super::{Cluster, SHARED_LEASE_COOLDOWN};
use fuse::Opcode;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const PAGE: usize = 4096;
/// Bytes of the mapped file: several times what the kernel reads around a missing page.
const BYTES: usize = 16 << 20;
/// Writes beside a mapping. From the hundredth missing page in a row on, the kernel reads no more
/// than that page.
const WRITES: usize = 64;
/// The record size of IO500's hard write, and the number of records in the file.
const RECORD: usize = 47_008;
const RECORDS: usize = 700;
/// Attempts at a count that memory reclaim may disturb.
const ATTEMPTS: usize = 3;

/// A file mapped for reading, as an application maps it.
struct Mapping {
    begin: *const u8,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: usize) -> Mapping {
        // SAFETY: the kernel chooses a free address.
        let begin = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(begin, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { begin: begin.cast(), len }
    }

    /// Returns the first byte of a page.
    fn page(&self, number: usize) -> u8 {
        assert!(number * PAGE < self.len);
        // SAFETY: the address is within the mapping and the file. Other processes change it, so
        // each call reads it.
        unsafe { self.begin.add(number * PAGE).read_volatile() }
    }

    fn touch_all(&self) {
        (0..self.len / PAGE).for_each(|number| _ = self.page(number));
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: there are no references to it any more.
        unsafe { libc::munmap(self.begin.cast_mut().cast(), self.len) };
    }
}

fn reads(cluster: &Cluster) -> u64 {
    cluster.mounts[0].stats().requests(Opcode::Read)
}

/// Returns the lowest of several counts.
fn fewest(count: impl FnMut() -> u64) -> u64 {
    std::iter::repeat_with(count).take(ATTEMPTS).min().unwrap()
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

pub(crate) fn a_mapping_keeps_its_pages_during_writes(cluster: &Cluster) {
    let [path, elsewhere] = cluster.paths("mapped");
    fs::write(&path, vec![0; BYTES]).unwrap();
    let file = open(&path, 0);
    let mapping = Mapping::new(&file, BYTES);
    mapping.touch_all();
    let before = reads(cluster);
    let places = |round: usize| (0..WRITES).map(move |number| (number * 61 % (BYTES / PAGE), round as u8));
    for (page, byte) in places(1) {
        file.write_all_at(&[byte; PAGE], (page * PAGE) as u64).unwrap();
        assert_eq!(mapping.page(page), byte);
        mapping.touch_all();
    }
    let asked = reads(cluster) - before;
    eprintln!("{asked} reads for {WRITES} writes to a mapped file of {BYTES} bytes");
    assert!(asked <= WRITES as u64 * 3 / 2, "{asked} reads: writes take other pages with them");
    assert!(places(1).all(|(page, byte)| mapping.page(page) == byte));

    // Writes through the other mount between writes here are visible.
    let other = open(&elsewhere, 0);
    for round in 2..12 {
        for ((page, byte), (beside, _)) in places(round).zip(places(round).skip(1)).take(4) {
            file.write_all_at(&[byte; PAGE], (page * PAGE) as u64).unwrap();
            assert_eq!(mapping.page(page), byte);
            other.write_all_at(&[byte + 100; PAGE], ((beside + 1) * PAGE) as u64).unwrap();
            assert_eq!((mapping.page(page), mapping.page(beside + 1)), (byte, byte + 100));
        }
    }
    drop((mapping, file, other));
    fs::remove_file(path).unwrap();
}

pub(crate) fn recently_written_records_are_read_ahead(cluster: &Cluster) {
    let [path, _] = cluster.paths("records");
    let record = |number: usize| vec![number as u8; RECORD];
    let read_all = || {
        let (mut file, mut found, before) = (File::open(&path).unwrap(), vec![0; RECORD], reads(cluster));
        for number in 0..RECORDS {
            file.read_exact(&mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == number as u8), "record {number}");
        }
        (reads(cluster) - before, file)
    };
    let mut file = File::create(&path).unwrap();
    (0..RECORDS).for_each(|number| file.write_all(&record(number)).unwrap());
    drop(file);
    let (just_written, file) = read_all();
    let warm = fewest(|| read_all().0);
    // SAFETY: the call takes only integers.
    let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(refused, 0);
    let (cold, file) = read_all();
    eprintln!("{RECORDS} records: {just_written} reads when just written, {warm} again, {cold} cold");
    assert!(just_written <= 2 * cold, "{just_written} reads when just written, {cold} cold");
    assert!(cold < RECORDS as u64 / 4 && warm < cold / 4, "{warm} reads again, {cold} cold");

    // An open for writing without a write takes no pages from readers. The kernel may reclaim pages
    // at any time, but a defect would take them every time: so the best of several attempts counts.
    let asked = fewest(|| {
        let before = reads(cluster);
        for flags in [0, libc::O_DIRECT] {
            drop(open(&path, flags));
            let mut found = vec![0; RECORD];
            (0..RECORDS).for_each(|number| file.read_exact_at(&mut found, (number * RECORD) as u64).unwrap());
        }
        reads(cluster) - before
    });
    assert!(asked < cold / 4, "{asked} reads: pages went when the file was opened for writing");
    fs::remove_file(path).unwrap();
    std::thread::sleep(SHARED_LEASE_COOLDOWN);
}
