//! A target whose disk hangs: requests that wait for it don't block others.

use super::{Cluster, aio};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

/// More readers than a processor has workers.
const READERS: usize = 24;
const PIECE: usize = 4096;

/// Applications on one processor wait for more reads than it has workers; another application on
/// that processor makes an unrelated request.
pub(crate) fn requests_waiting_for_a_disk_do_not_block_others(cluster: &Cluster) {
    let [path, _] = cluster.paths("hanging");
    fs::write(&path, vec![7; READERS * PIECE]).unwrap();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let never = cluster.paths("never")[0].clone();
    let (done, ended) = channel();
    cluster.storage.hang.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for number in 0..READERS {
            let file: &File = &file;
            scope.spawn(move || {
                aio::stay_on(0);
                // Direct reads need memory aligned to blocks.
                let mut room = vec![0; 2 * PIECE];
                let from = room.as_ptr().align_offset(PIECE);
                let piece = &mut room[from..from + PIECE];
                file.read_exact_at(piece, (number * PIECE) as u64).unwrap();
                assert!(piece.iter().all(|byte| *byte == 7));
            });
        }
        while cluster.storage.hanging.load(Ordering::SeqCst) < 8 {
            std::thread::sleep(Duration::from_millis(5));
        }
        scope.spawn(|| {
            aio::stay_on(0);
            fs::metadata(&never).unwrap_err();
            done.send(()).unwrap();
        });
        let in_time = ended.recv_timeout(Duration::from_secs(30)).is_ok();
        cluster.storage.hang.store(false, Ordering::SeqCst);
        assert!(in_time, "a name is asked for behind reads of a disk that hangs");
    });
}
