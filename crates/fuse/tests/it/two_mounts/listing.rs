//! Listings by `getdents64(2)`, as applications read them that don't use `opendir(3)`, which
//! requests the directory's attributes first.

#![allow(unsafe_code, reason = "system calls that the standard library doesn't have")]

use super::{Cluster, SHARED_LEASE_COOLDOWN};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;

/// Offsets in a `linux_dirent64` of the record length and of the name.
const RECORD_LEN: usize = 16;
const NAME: usize = 19;

/// Returns the names in a directory from the descriptor's position on.
pub(crate) fn names(dir: &File) -> io::Result<BTreeSet<String>> {
    let (mut names, mut buffer) = (BTreeSet::new(), vec![0u8; 32 << 10]);
    loop {
        // SAFETY: the buffer is live and has the given length.
        let len = unsafe {
            libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        };
        let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
        if len == 0 {
            return Ok(names);
        }
        let mut at = 0;
        while at < len {
            let record =
                usize::from(u16::from_ne_bytes([buffer[at + RECORD_LEN], buffer[at + RECORD_LEN + 1]]));
            let name = buffer[at + NAME..at + record].split(|byte| *byte == 0).next().unwrap_or_default();
            names.insert(String::from_utf8_lossy(name).into_owned());
            at += record;
        }
    }
}

/// No client gets a lease on a directory in which both create files. After some time without
/// changes, a client that lists it gets one.
pub fn listings_show_entries_of_other_clients(cluster: &Cluster) {
    let [here, there] = cluster.paths("listed");
    fs::create_dir(&here).unwrap();
    for settles in [false, true] {
        let mut kept = File::open(&here).unwrap();
        for round in 0..4 {
            let [own, others] = ["own", "others"].map(|who| format!("{who}-{settles}-{round}"));
            fs::write(here.join(&own), "").unwrap();
            fs::write(there.join(format!("{others}-before")), "").unwrap();
            if settles && round == 0 {
                std::thread::sleep(SHARED_LEASE_COOLDOWN);
            }
            names(&File::open(&here).unwrap()).unwrap();
            kept.seek(SeekFrom::Start(0)).unwrap();
            names(&kept).unwrap();
            fs::write(there.join(&others), "").unwrap();
            kept.seek(SeekFrom::Start(0)).unwrap();
            for found in [names(&kept).unwrap(), names(&File::open(&here).unwrap()).unwrap()] {
                assert!(found.contains(&own) && found.contains(&others), "{others} is missing: {found:?}");
            }
            fs::remove_file(there.join(&others)).unwrap();
            kept.seek(SeekFrom::Start(0)).unwrap();
            for found in [names(&File::open(&here).unwrap()).unwrap(), names(&kept).unwrap()] {
                assert!(!found.contains(&others), "{others} is there yet");
            }
        }
    }
}
