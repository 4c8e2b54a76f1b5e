//! An application that reads one page after another doesn't starve writers, on its own mount or on
//! another one.

use super::Cluster;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const PAGE: usize = 4096;
/// More pages than the reader reads during the test.
const BYTES: u64 = 64 << 30;
const WRITES: u8 = 5;
/// A writer must wait for no more than a few reads. In this time thousands of reads pass, one after
/// another.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn continuous_reads_do_not_starve_writers(cluster: &Cluster) {
    let [path, elsewhere] = cluster.paths("busy");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[0; PAGE], 0).unwrap();
    file.set_len(BYTES).unwrap();
    drop(file);
    std::thread::sleep(super::SHARED_LEASE_COOLDOWN);
    // Opened before the first write, so its kernel caches pages.
    let (reader, beside) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    advise_random(&reader);
    let writers = [&elsewhere, &path]
        .map(|path| OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(path).unwrap());
    let (goes_on, page) = (AtomicBool::new(true), AtomicU64::new(1));
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = [1; PAGE];
            while goes_on.load(Ordering::SeqCst) {
                let number = page.fetch_add(1, Ordering::SeqCst);
                reader.read_exact_at(&mut found, number * PAGE as u64).unwrap();
                assert!(found.iter().all(|byte| *byte == 0));
            }
        });
        scope.spawn(|| {
            for byte in 1..=WRITES {
                for writer in &writers {
                    writer.write_all_at(&[byte; PAGE], 0).unwrap();
                    let mut found = [0; PAGE];
                    beside.read_exact_at(&mut found, 0).unwrap();
                    done.send(found == [byte; PAGE]).unwrap();
                }
            }
        });
        let turns: Vec<_> = (0..2 * WRITES).map_while(|_| ended.recv_timeout(TEST_TIMEOUT).ok()).collect();
        goes_on.store(false, Ordering::SeqCst);
        assert_eq!(turns, [true; 2 * WRITES as usize], "{} pages were read", page.load(Ordering::SeqCst));
    });
    std::fs::remove_file(path).unwrap();
}

/// Makes the kernel read only requested pages.
fn advise_random(file: &File) {
    #[allow(unsafe_code, reason = "a system call that the standard library doesn't have")]
    // SAFETY: the call takes only integers.
    let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    assert_eq!(refused, 0);
}
