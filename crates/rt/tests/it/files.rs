//! Files on the machine's own file system.
#![allow(unsafe_code)] // For the raw driver command.

use rt::{Fallocate, File, IoBuf, OpenOptions, PathGuard};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::task::Poll;

const BLOCK: usize = 4096;

fn writable() -> OpenOptions {
    OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() }
}

fn filled(len: usize, byte: u8) -> IoBuf {
    IoBuf::from_slice(&vec![byte; len])
}

/// Runs a test in its own temporary directory.
fn in_temp_dir<F: Future<Output = ()> + 'static>(test: impl FnOnce(std::path::PathBuf) -> F) {
    let dir = tempfile::tempdir().unwrap();
    rt::block_on(test(dir.path().to_path_buf())).unwrap();
}

/// Polls a future once, so that its operation starts, and drops it.
async fn start_and_drop(future: impl Future) {
    let mut future = Box::pin(future);
    poll_fn(|cx| {
        let _ = future.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// Writes many blocks at once and reads them back, each with its own pattern.
async fn many_at_once(path: &Path, direct: bool) {
    const BLOCKS: usize = 1500; // More than the submission and completion queues hold.
    let file = Rc::new(File::open(path, OpenOptions { direct, ..writable() }).await.unwrap());
    let done = Rc::new(Cell::new(0));
    for block in 0..BLOCKS {
        let (file, done) = (file.clone(), done.clone());
        rt::spawn(async move {
            let offset = (block * BLOCK) as u64;
            let buf = filled(BLOCK, block as u8);
            assert_eq!(file.write_at(buf, offset).await.unwrap(), BLOCK);
            let back = IoBuf::alloc(BLOCK);
            assert_eq!(file.read_at(back.clone(), offset).await.unwrap(), BLOCK);
            assert!(back.as_slice().iter().all(|byte| *byte == block as u8));
            done.set(done.get() + 1);
        });
    }
    while done.get() < BLOCKS {
        rt::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(file.stat().await.unwrap().len, (BLOCKS * BLOCK) as u64);
}

#[test]
fn many_buffered_operations_at_once() {
    in_temp_dir(|dir| async move { many_at_once(&dir.join("f"), false).await });
}

#[test]
fn many_direct_operations_at_once() {
    in_temp_dir(|dir| async move { many_at_once(&dir.join("f"), true).await });
}

#[test]
fn reads_stop_at_the_end_of_the_file() {
    in_temp_dir(|dir| async move {
        for direct in [false, true] {
            let path = dir.join(format!("f{direct}"));
            let buffered = File::open(&path, writable()).await.unwrap();
            buffered.write_at(filled(BLOCK + 100, 7), 0).await.unwrap();
            buffered.sync_data().await.unwrap();
            let file = File::open(&path, OpenOptions { read: true, direct, ..OpenOptions::default() })
                .await
                .unwrap();
            let buf = IoBuf::alloc(4 * BLOCK);
            assert_eq!(file.read_at(buf.clone(), 0).await.unwrap(), BLOCK + 100);
            assert_eq!(buf.as_slice()[BLOCK + 99], 7);
            assert_eq!(file.read_at(buf.slice(0..BLOCK), BLOCK as u64).await.unwrap(), 100);
            assert_eq!(file.read_at(buf, 8 * BLOCK as u64).await.unwrap(), 0);
        }
    });
}

#[test]
fn dropped_operations_keep_their_buffers_and_files() {
    in_temp_dir(|dir| async move {
        let path = dir.join("written");
        let mut decoys = Vec::new();
        for round in 0..200u64 {
            // The file is dropped with the future, and the next file gets its descriptor's number
            // before the entry is submitted.
            let file = File::open(&path, OpenOptions { direct: true, ..writable() }).await.unwrap();
            let buf = filled(BLOCK, 1);
            start_and_drop(file.write_at(buf, round * BLOCK as u64)).await;
            drop(file);
            let decoy = dir.join("decoy");
            decoys.push(File::open(&decoy, writable()).await.unwrap());
        }
        let file = File::open(&path, writable()).await.unwrap();
        for _ in 0..60_000 {
            if file.stat().await.unwrap().len == 200 * BLOCK as u64 {
                break;
            }
            rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(file.stat().await.unwrap().len, 200 * BLOCK as u64);
        let decoy = File::open(&dir.join("decoy"), writable()).await.unwrap();
        assert_eq!(decoy.stat().await.unwrap().len, 0);
        let buf = IoBuf::alloc(200 * BLOCK);
        assert_eq!(file.read_at(buf.clone(), 0).await.unwrap(), 200 * BLOCK);
    });
}

#[test]
fn a_dropped_open_leaks_no_descriptor() {
    in_temp_dir(|dir| async move {
        let path = dir.join("f");
        File::open(&path, writable()).await.unwrap();
        for _ in 0..50 {
            start_and_drop(File::open(&path, OpenOptions { read: true, ..OpenOptions::default() })).await;
        }
        let still_open = || {
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
            descriptors
                .filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|p| p == path))
                .count()
        };
        // The opens may not have started yet; a sync behind them in the queue ensures that they
        // have.
        File::open(&path, writable()).await.unwrap().sync_data().await.unwrap();
        for _ in 0..60_000 {
            if still_open() == 0 {
                return;
            }
            rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("{} descriptors are left open", still_open());
    });
}

#[test]
fn a_core_that_ends_waits_for_its_operations() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    rt::block_on(async move {
        let file = Rc::new(File::open(&path, OpenOptions { direct: true, ..writable() }).await.unwrap());
        for block in 0..100u64 {
            let file = file.clone();
            rt::spawn(async move {
                let _ = file.write_at(filled(BLOCK, 3), block * BLOCK as u64).await;
            });
        }
        rt::yield_now().await;
    })
    .unwrap();
}

#[test]
fn a_dropped_poll_is_cancelled_and_another_one_works() {
    rt::block_on(async {
        let (reader, writer) = std::io::pipe().unwrap();
        start_and_drop(rt::ring::readable(reader.as_raw_fd())).await;
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::io::Write::write_all(&mut &writer, b"x").unwrap();
        });
        rt::ring::readable(reader.as_raw_fd()).await.unwrap();
        thread.join().unwrap();
    })
    .unwrap();
}

#[test]
fn a_driver_command_to_a_plain_file_is_refused() {
    let result = rt::block_on(async {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: the command refers to no memory, and the file is open until it completes.
        unsafe { rt::ring::uring_cmd(file.as_raw_fd(), (1, [0; 80]), (0, 0), [None, None]).await }
    });
    assert!(result.unwrap() < 0);
}

#[test]
fn space_is_reserved_punched_and_zeroed() {
    in_temp_dir(|dir| async move {
        let file = File::open(&dir.join("f"), writable()).await.unwrap();
        file.write_at_durable(filled(16 * BLOCK, 9), 0).await.unwrap();
        file.allocate(Fallocate::Reserve, 0, 64 * BLOCK as u64).await.unwrap();
        assert_eq!(file.stat().await.unwrap().len, 16 * BLOCK as u64);
        file.allocate(Fallocate::Punch, 4 * BLOCK as u64, 4 * BLOCK as u64).await.unwrap();
        let buf = IoBuf::alloc(BLOCK);
        file.read_at(buf.clone(), 5 * BLOCK as u64).await.unwrap();
        assert!(buf.as_slice().iter().all(|byte| *byte == 0));
        assert_eq!(file.seek_hole(0).await.unwrap(), 4 * BLOCK as u64);
        assert_eq!(file.seek_data(4 * BLOCK as u64).await.unwrap(), Some(8 * BLOCK as u64));
        file.set_len(BLOCK as u64).await.unwrap();
        assert_eq!(file.seek_data(BLOCK as u64).await.unwrap(), None);
    });
}

#[test]
fn unallocated_ranges_have_neither_data_nor_a_reservation() {
    in_temp_dir(|dir| async move {
        let file = File::open(&dir.join("f"), writable()).await.unwrap();
        let block = BLOCK as u64;
        let all = 0..64 * block;
        match file.unallocated_ranges(all.clone(), 8).await {
            Err(error) => return println!("skipped: extents are not listed here: {error}"),
            Ok(gaps) => assert_eq!((gaps.bytes, gaps.first), (64 * block, vec![all.clone()])),
        }
        file.write_at(filled(BLOCK, 1), 8 * block).await.unwrap();
        // ext4 frees no space beyond the end of a file.
        file.set_len(64 * block).await.unwrap();
        file.sync_data().await.unwrap();
        file.allocate(Fallocate::Reserve, 32 * block, 4 * block).await.unwrap();
        let gaps = file.unallocated_ranges(all.clone(), 8).await.unwrap();
        assert_eq!(gaps.first, [0..8 * block, 9 * block..32 * block, 36 * block..64 * block]);
        assert_eq!(gaps.bytes, 59 * block);
        assert_eq!(
            file.unallocated_ranges(all.clone(), 1).await.unwrap().bytes,
            59 * block,
            "all are counted"
        );
        file.allocate(Fallocate::Punch, 32 * block, 4 * block).await.unwrap();
        assert_eq!(file.unallocated_ranges(all, 8).await.unwrap().bytes, 63 * block);
    });
}

#[test]
fn names_are_made_renamed_and_removed() {
    in_temp_dir(|dir| async move {
        let deep = dir.join("a/b/c");
        rt::create_dir_all(&deep).await.unwrap();
        File::open(&deep.join("x"), writable()).await.unwrap();
        let exclusive = OpenOptions { exclusive: true, ..writable() };
        let taken = File::open(&deep.join("x"), exclusive).await.unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AlreadyExists);
        rt::rename(&deep.join("x"), &deep.join("y")).await.unwrap();
        rt::sync_dir(&deep).await.unwrap();
        rt::sync_filesystem(&deep).await.unwrap();
        assert_eq!(rt::read_dir(&deep).await.unwrap(), ["y"]);
        rt::remove_file(&deep.join("y")).await.unwrap();
        let missing = File::open(&deep.join("y"), OpenOptions { read: true, ..OpenOptions::default() }).await;
        assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
        let (capacity, free) = rt::file_system_space(&dir).await.unwrap();
        assert!(free <= capacity && capacity > 0);
    });
}

#[test]
fn files_are_shared_between_cores() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = rt::block_on(async move { std::sync::Arc::new(File::open(&path, writable()).await.unwrap()) });
    let file = file.unwrap();
    let cores: Vec<_> = (0..2u64)
        .map(|core| {
            let file = file.clone();
            let config =
                rt::CoreConfig { name: format!("core-{core}"), cpu: Some(core as usize), batch: false };
            let work = move || async move {
                for block in 0..100 {
                    let offset = (block * 2 + core) * BLOCK as u64;
                    file.write_at(filled(BLOCK, core as u8 + 1), offset).await.unwrap();
                }
            };
            rt::start_core(config, work).unwrap()
        })
        .collect();
    cores.into_iter().for_each(|core| core.join().unwrap());
    let buf = IoBuf::alloc(200 * BLOCK);
    let back = buf.clone();
    assert_eq!(rt::block_on(async move { file.read_at(back, 0).await.unwrap() }).unwrap(), 200 * BLOCK);
    for (block, bytes) in buf.as_slice().chunks(BLOCK).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == (block % 2) as u8 + 1), "block {block}");
    }
}

#[test]
fn checksums_of_a_buffer_are_discarded_when_it_is_read_into() {
    in_temp_dir(|dir| async move {
        let file = File::open(&dir.join("f"), writable()).await.unwrap();
        let buf = filled(BLOCK, 1);
        buf.note_checksums(vec![17]);
        file.write_at(buf.clone(), 0).await.unwrap();
        assert_eq!(buf.with_checksums(|sums| sums[0]), Some(17));
        file.read_at(buf.clone(), 0).await.unwrap();
        assert_eq!(buf.with_checksums(|sums| sums[0]), None);
    });
}

#[test]
fn a_path_guard_detects_another_file() {
    in_temp_dir(|dir| async move {
        let (inside, away) = (dir.join("d"), dir.join("away"));
        std::fs::create_dir(&inside).unwrap();
        let held = PathGuard::new(&inside).unwrap();
        assert!(held.leads_to_same_file().unwrap());
        std::fs::rename(&inside, &away).unwrap();
        assert_eq!(held.leads_to_same_file().unwrap_err().kind(), std::io::ErrorKind::NotFound);
        std::fs::create_dir(&inside).unwrap();
        assert!(!held.leads_to_same_file().unwrap(), "another directory has its name");
        std::fs::remove_dir(&inside).unwrap();
        std::fs::rename(&away, &inside).unwrap();
        assert!(held.leads_to_same_file().unwrap());
    });
}
