//! A program that reads one page after another: whoever wants to write gets his turn, on its own
//! mount and on another one.

use super::Cluster;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const PAGE: usize = 4096;
/// More pages than are read meanwhile.
const BYTES: u64 = 64 << 30;
const WRITES: u8 = 5;
/// The writers have to wait for no more than some reads. One at a time would be let through in this
/// time by the thousand.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn who_reads_page_after_page_keeps_nobody_from_writing(cluster: &Cluster) {
    let [path, elsewhere] = cluster.paths("busy");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[0; PAGE], 0).unwrap();
    file.set_len(BYTES).unwrap();
    drop(file);
    std::thread::sleep(super::SETTLING);
    // Opened before anybody writes, so its kernel keeps pages.
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
        let turns: Vec<_> = (0..2 * WRITES).map_while(|_| ended.recv_timeout(PATIENCE).ok()).collect();
        goes_on.store(false, Ordering::SeqCst);
        assert_eq!(turns, [true; 2 * WRITES as usize], "{} pages were read", page.load(Ordering::SeqCst));
    });
    std::fs::remove_file(path).unwrap();
}

/// The kernel reads no page that isn't asked for.
fn advise_random(file: &File) {
    #[allow(unsafe_code, reason = "a system call that the standard library doesn't have")]
    // SAFETY: it takes numbers alone.
    let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    assert_eq!(refused, 0);
}
