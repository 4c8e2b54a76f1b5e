//! The simulated machine: determinism, time, and the effects of crashes on its disk.

use rt::sim::Machine;
use rt::{Fallocate, File, IoBuf, OpenOptions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const SECTOR: usize = 512;

fn writable() -> OpenOptions {
    OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() }
}

fn filled(len: usize, byte: u8) -> IoBuf {
    IoBuf::from_slice(&vec![byte; len])
}

async fn open(path: &str) -> File {
    File::open(Path::new(path), writable()).await.unwrap()
}

async fn sleep_s(seconds: u64) {
    rt::sleep(Duration::from_secs(seconds)).await;
}

/// The bytes of a file; `None` if there is none.
async fn content(path: &str) -> Option<Vec<u8>> {
    let options = OpenOptions { read: true, ..OpenOptions::default() };
    let file = File::open(Path::new(path), options).await.ok()?;
    let buf = IoBuf::alloc(file.stat().await.unwrap().len as usize);
    assert_eq!(file.read_at(buf.clone(), 0).await.unwrap(), buf.len());
    Some(buf.as_slice().to_vec())
}

#[test]
fn secrets_of_a_simulation_are_those_of_its_seed() {
    let secrets = |seed| {
        let drawn = async { (rt::secret_bytes::<20>(), rt::secret_u64(), rt::secret_bytes::<20>()) };
        Machine::new(seed).run(drawn).unwrap()
    };
    assert_eq!(secrets(7), secrets(7));
    assert_ne!(secrets(7), secrets(8));
    let (first, _, second) = secrets(7);
    assert_ne!(first, second);
}

/// Tasks that race for a file and log what they see.
fn trace(seed: u64) -> (Vec<String>, u64, u64) {
    let mut machine = Machine::new(seed);
    let log = machine
        .run(async {
            let log = Rc::new(RefCell::new(Vec::new()));
            let tasks = (0..5u8).map(|task| {
                let log = log.clone();
                async move {
                    let file = open("/f").await;
                    for round in 0..10 {
                        let offset = rt::random_u64() % 8192;
                        file.write_at(filled(100, task), offset).await.unwrap();
                        rt::sleep(Duration::from_micros(rt::random_u64() % 1000)).await;
                        let line = format!("{task} {round} {offset} {} {:?}", rt::monotonic_ns(), rt::now());
                        log.borrow_mut().push(line);
                    }
                    file.sync_data().await.unwrap();
                }
            });
            rt::join_all(tasks.collect()).await;
            log.take()
        })
        .unwrap();
    (log, machine.fingerprint(), machine.steps())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(trace(11), trace(11));
    assert_ne!(trace(11).0, trace(12).0);
}

#[test]
fn ready_tasks_run_in_seeded_order() {
    let order = |seed| {
        let ran = Rc::new(RefCell::new(Vec::new()));
        let log = ran.clone();
        let run = Machine::new(seed).run(async move {
            for task in 0..6 {
                let log = log.clone();
                rt::spawn(async move { log.borrow_mut().push(task) });
            }
            rt::sleep(Duration::from_millis(1)).await;
        });
        run.unwrap();
        ran.take()
    };
    let orders: BTreeSet<Vec<i32>> = (0..20).map(order).collect();
    assert!(orders.len() > 10);
}

#[test]
fn time_jumps_over_a_long_sleep() {
    let mut machine = Machine::new(1);
    machine.run(sleep_s(3600)).unwrap();
    assert!(machine.clock_ns() >= 3_600_000_000_000);
    assert!(machine.steps() < 10);
}

#[test]
fn a_task_that_yields_in_a_loop_sees_time_pass() {
    let run = Machine::new(1).run(async {
        let late = Rc::new(Cell::new(false));
        let flag = late.clone();
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(1)).await;
            flag.set(true);
        });
        while !late.get() {
            rt::yield_now().await;
        }
    });
    run.unwrap();
}

#[test]
fn waiting_for_nothing_is_a_deadlock() {
    let mut machine = Machine::new(1);
    let deadlock = machine.run(std::future::pending::<()>()).unwrap_err();
    assert_eq!(deadlock.tasks, 1);
}

#[test]
fn tasks_live_on_between_runs_but_not_over_a_crash() {
    let mut machine = Machine::new(1);
    let beats = Rc::new(Cell::new(0));
    let heart = beats.clone();
    machine
        .run(async move {
            rt::spawn(async move {
                loop {
                    rt::sleep(Duration::from_secs(1)).await;
                    heart.set(heart.get() + 1);
                }
            });
        })
        .unwrap();
    machine.run(sleep_s(5)).unwrap();
    assert!((4..=5).contains(&beats.get()));
    machine.kill();
    assert_eq!(Rc::strong_count(&beats), 1);
}

#[test]
fn a_crash_keeps_what_was_synced_and_loses_only_the_rest() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let mut machine = Machine::new(seed);
        machine
            .run(async {
                rt::create_dir_all(Path::new("/d")).await.unwrap();
                let file = open("/d/f").await;
                file.write_at(filled(4 * SECTOR, 1), 0).await.unwrap();
                file.sync_data().await.unwrap();
                file.write_at(filled(2 * SECTOR, 2), SECTOR as u64).await.unwrap();
                file.write_at_durable(filled(SECTOR, 3), 3 * SECTOR as u64).await.unwrap();
            })
            .unwrap();
        machine.crash();
        let bytes = machine.run(content("/d/f")).unwrap().expect("a synced file keeps its name");
        assert_eq!(bytes.len(), 4 * SECTOR);
        let sectors: Vec<u8> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
        assert!(bytes.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        assert_eq!((sectors[0], sectors[3]), (1, 3));
        outcomes.insert(sectors);
    }
    // Lost, retained, and torn both ways.
    let expected = [[1, 1, 1, 3], [1, 1, 2, 3], [1, 2, 1, 3], [1, 2, 2, 3]].map(Vec::from);
    assert_eq!(outcomes, BTreeSet::from(expected));
}

#[test]
fn a_durable_write_is_not_undone_by_older_unsynced_ones() {
    for seed in 0..100 {
        let mut machine = Machine::new(seed);
        machine
            .run(async {
                let file = open("/f").await;
                file.write_at(filled(8 * SECTOR, 1), 0).await.unwrap();
                file.set_len(SECTOR as u64).await.unwrap();
                file.write_at_durable(filled(4 * SECTOR, 2), 0).await.unwrap();
            })
            .unwrap();
        machine.crash();
        assert_eq!(machine.run(content("/f")).unwrap(), Some(vec![2; 4 * SECTOR]), "seed {seed}");
    }
}

#[test]
fn replacing_a_file_by_rename_is_atomic_and_durable_after_sync_dir() {
    let mut before_sync = BTreeSet::new();
    for seed in 0..100 {
        for synced in [false, true] {
            let mut machine = Machine::new(seed);
            machine
                .run(async move {
                    for (name, byte) in [("/cur", 1), ("/tmp", 2)] {
                        let file = open(name).await;
                        file.write_at(filled(10, byte), 0).await.unwrap();
                        file.sync_data().await.unwrap();
                    }
                    rt::rename(Path::new("/tmp"), Path::new("/cur")).await.unwrap();
                    if synced {
                        rt::sync_dir(Path::new("/")).await.unwrap();
                    }
                })
                .unwrap();
            machine.crash();
            let bytes = machine.run(content("/cur")).unwrap().expect("one of the two is there");
            assert!(bytes == [1; 10] || bytes == [2; 10]);
            if synced {
                assert_eq!(bytes, [2; 10]);
                assert_eq!(machine.run(content("/tmp")).unwrap(), None);
            } else {
                before_sync.insert(bytes[0]);
            }
        }
    }
    assert_eq!(before_sync, BTreeSet::from([1, 2]));
}

#[test]
fn unsynced_names_are_kept_or_lost() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let mut machine = Machine::new(seed);
        machine
            .run(async {
                open("/old").await;
                rt::sync_filesystem(Path::new("/")).await.unwrap();
                rt::remove_file(Path::new("/old")).await.unwrap();
                open("/new").await;
            })
            .unwrap();
        machine.crash();
        let mut names = machine.run(async { rt::read_dir(Path::new("/")).await.unwrap() }).unwrap();
        names.sort();
        outcomes.insert(names);
    }
    assert_eq!(outcomes.len(), 4);
}

#[test]
fn a_kill_keeps_every_completed_write() {
    for seed in 0..50 {
        let mut machine = Machine::new(seed);
        let completed = Rc::new(Cell::new(0u64));
        let count = completed.clone();
        let work = async move {
            let file = open("/f").await;
            for block in 0..1000u64 {
                file.write_at(filled(SECTOR, 5), block * SECTOR as u64).await.unwrap();
                count.set(block + 1);
            }
        };
        assert_eq!(machine.run_until(work, 20 + seed).unwrap(), None);
        machine.kill();
        let bytes = machine.run(content("/f")).unwrap().unwrap();
        let blocks = (bytes.len() / SECTOR) as u64;
        assert!(blocks == completed.get() || blocks == completed.get() + 1, "seed {seed}");
        assert!(bytes.iter().all(|byte| *byte == 5));
    }
}

#[test]
fn operations_under_way_at_a_kill_happen_or_not() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let mut machine = Machine::new(seed);
        let file = machine.run(open("/f")).unwrap();
        // One step only starts the write.
        let write = async move { file.write_at(filled(10, 1), 0).await.unwrap() };
        assert_eq!(machine.run_until(write, 1).unwrap(), None);
        machine.kill();
        outcomes.insert(machine.run(content("/f")).unwrap().unwrap().len());
    }
    assert_eq!(outcomes, BTreeSet::from([0, 10]));
}

#[test]
fn a_file_opened_before_a_crash_is_invalid() {
    let mut machine = Machine::new(1);
    let file = machine.run(open("/f")).unwrap();
    machine.kill();
    let error = machine.run(async move { file.sync_data().await.unwrap_err() }).unwrap();
    assert_eq!(error.raw_os_error(), Some(9));
}

#[test]
fn a_full_disk_refuses_writes_until_space_is_freed() {
    let mut machine = Machine::new(1);
    machine.set_capacity(Some(64 << 10));
    machine
        .run(async {
            let first = open("/first").await;
            first.write_at(filled(40 << 10, 1), 0).await.unwrap();
            let second = open("/second").await;
            let full = second.write_at(filled(40 << 10, 1), 0).await.unwrap_err();
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
            let full = second.allocate(Fallocate::Reserve, 0, 40 << 10).await.unwrap_err();
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
            assert_eq!(rt::file_system_space(Path::new("/")).await.unwrap(), (64 << 10, 24 << 10));
            // Overwriting allocates no more space.
            first.write_at(filled(40 << 10, 2), 0).await.unwrap();
            rt::remove_file(Path::new("/first")).await.unwrap();
            // Still open, so its content still exists.
            assert_eq!(first.read_at(IoBuf::alloc(10), 0).await.unwrap(), 10);
            drop(first);
            rt::sync_dir(Path::new("/")).await.unwrap();
            second.write_at(filled(40 << 10, 1), 0).await.unwrap();
        })
        .unwrap();
}

#[test]
fn reads_fail_as_often_as_asked() {
    let mut machine = Machine::new(1);
    machine.set_read_errors(200_000);
    let failed = machine.run(async {
        let file = open("/f").await;
        file.write_at(filled(10, 1), 0).await.unwrap();
        let mut failed = 0;
        for _ in 0..1000 {
            failed += file.read_at(IoBuf::alloc(10), 0).await.is_err() as i32;
        }
        failed
    });
    assert!((130..270).contains(&failed.unwrap()));
}

#[test]
fn direct_files_insist_on_alignment() {
    let run = Machine::new(1).run(async {
        let options = OpenOptions { direct: true, ..writable() };
        let file = File::open(Path::new("/f"), options).await.unwrap();
        assert!(file.write_at(filled(100, 1), 0).await.is_err());
        assert!(file.write_at(filled(4096, 1), 512).await.is_err());
        file.write_at(filled(4096, 1), 4096).await.unwrap();
        assert_eq!(file.seek_data(0).await.unwrap(), Some(4096));
        assert_eq!(file.seek_hole(4096).await.unwrap(), 8192);
    });
    run.unwrap();
}

#[test]
fn names_behave_as_on_a_real_file_system() {
    let run = Machine::new(1).run(async {
        let kind = |error: std::io::Error| error.kind();
        let missing = File::open(Path::new("/no/f"), writable()).await.unwrap_err();
        assert_eq!(kind(missing), std::io::ErrorKind::NotFound);
        rt::create_dir_all(Path::new("/a/b")).await.unwrap();
        rt::create_dir_all(Path::new("/a/b")).await.unwrap();
        open("/a/b/f").await;
        open("/a/z").await;
        assert_eq!(rt::read_dir(Path::new("/a")).await.unwrap(), ["b", "z"]);
        let taken = OpenOptions { exclusive: true, ..writable() };
        let taken = File::open(Path::new("/a/z"), taken).await.unwrap_err();
        assert_eq!(kind(taken), std::io::ErrorKind::AlreadyExists);
        let below_file = rt::create_dir_all(Path::new("/a/z/y")).await.unwrap_err();
        assert_eq!(kind(below_file), std::io::ErrorKind::NotADirectory);
        let directory = rt::remove_file(Path::new("/a/b")).await.unwrap_err();
        assert_eq!(kind(directory), std::io::ErrorKind::IsADirectory);
        rt::remove_file(Path::new("/a/z")).await.unwrap();
        assert_eq!(content("/a/z").await, None);
    });
    run.unwrap();
}

#[test]
fn a_dropped_operation_still_happens() {
    let mut machine = Machine::new(1);
    let len = machine.run(async {
        let file = open("/f").await;
        let mut write = Box::pin(file.write_at(filled(10, 1), 0));
        std::future::poll_fn(|cx| {
            assert!(std::future::Future::poll(write.as_mut(), cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(write);
        let mut abandoned = Box::pin(File::open(Path::new("/other"), writable()));
        std::future::poll_fn(|cx| {
            assert!(std::future::Future::poll(abandoned.as_mut(), cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(abandoned);
        rt::sleep(Duration::from_millis(10)).await;
        (file.stat().await.unwrap().len, content("/other").await)
    });
    assert_eq!(len.unwrap(), (10, Some(vec![])));
}
