//! Listings as programs read them that do without `opendir(3)`, which asks for the directory's
//! attributes before: `getdents64(2)`.

#![allow(unsafe_code, reason = "system calls that the standard library doesn't have")]

use super::{Cluster, SETTLING};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;

/// Where the length of a record is in a `linux_dirent64`, and where its name begins.
const RECORD_LEN: usize = 16;
const NAME: usize = 19;

/// The names in a directory from where the descriptor is.
pub(crate) fn names(dir: &File) -> io::Result<BTreeSet<String>> {
    let (mut names, mut buffer) = (BTreeSet::new(), vec![0u8; 32 << 10]);
    loop {
        // SAFETY: the buffer is live and as long as it is said to be.
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

/// A directory in which both make files is leased to nobody, and one that has not been changed for
/// a while is to whoever lists it.
pub fn listings_show_what_others_have_made(cluster: &Cluster) {
    let [here, there] = cluster.paths("listed");
    fs::create_dir(&here).unwrap();
    for settles in [false, true] {
        let mut kept = File::open(&here).unwrap();
        for round in 0..4 {
            let [own, others] = ["own", "others"].map(|who| format!("{who}-{settles}-{round}"));
            fs::write(here.join(&own), "").unwrap();
            fs::write(there.join(format!("{others}-before")), "").unwrap();
            if settles && round == 0 {
                std::thread::sleep(SETTLING);
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
