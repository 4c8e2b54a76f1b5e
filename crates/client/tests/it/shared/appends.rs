//! `O_APPEND` by several clients.

use super::cluster::{Application, RDONLY, RDWR, ROOT, with_cluster_of_seed};
use client::{SessionFailover, WriteOptions};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, InodeId};

/// Number of records that each client appends.
const RECORDS: u32 = 12;
/// Size of a record, in bytes: the file leaves the metadata store after some of them.
const RECORD: usize = 700;

#[test]
fn records_that_three_clients_append_never_overlap() {
    for seed in 1..=4 {
        with_cluster_of_seed(seed, |cluster| async move {
            let clients = cluster.clients::<3>().await;
            let mut files = vec![clients[0].create_file("log").await];
            for client in &clients[1..] {
                files.push(client.open_named("log", RDWR).await);
            }
            let programs = clients.iter().zip(&files).enumerate().map(|(index, (client, file))| async move {
                for number in 0..RECORDS {
                    let mut record = vec![b'a' + index as u8; RECORD];
                    record[..4].copy_from_slice(&number.to_le_bytes());
                    client.append(file, &record).await;
                }
            });
            rt::join_all(programs.collect()).await;
            let reader = cluster.client().await;
            let log = reader.open_named("log", RDONLY).await;
            let bytes = reader.read_all(&log).await;
            assert_eq!(bytes.len(), 3 * RECORDS as usize * RECORD);
            let mut next: BTreeMap<u8, u32> = BTreeMap::new();
            for record in bytes.chunks(RECORD) {
                let author = record[4];
                assert!(record[4..].iter().all(|&byte| byte == author));
                let number = u32::from_le_bytes(record[..4].try_into().unwrap());
                let expected = next.entry(author).or_default();
                assert_eq!(number, *expected);
                *expected += 1;
            }
        });
    }
}

/// Number of event orders to try.
const SEEDS: u64 = 40;
/// Applications on each mount.
const PROGRAMS: u32 = 3;
/// Number of evictions, one after the other.
const EVICTIONS: u32 = 6;
/// Longest pauses of an application between two records, and between two evictions, in
/// microseconds.
const PAUSE_US: (u64, u64) = (2_000, 30_000);

/// A record of an application; lengths vary, so that overlaps are detected.
fn line(program: u32, number: u32) -> String {
    format!("{program}:{number}:{}\n", "x".repeat((number * 31 + program * 7) as usize % 150))
}

async fn rest_for_up_to(most_us: u64) {
    rt::sleep(Duration::from_micros(rt::random_u64() % most_us)).await;
}

/// Appends records until `stop` is set; returns the acknowledged ones.
async fn append_records(mount: Arc<SessionFailover>, program: u32, stop: Rc<Cell<bool>>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let append = WriteOptions { append: true, ..WriteOptions::default() };
    for number in 0.. {
        if stop.get() {
            break;
        }
        let record = line(program, number);
        let found = mount.lookup(ROOT, InodeId::ROOT, b"log").await.unwrap();
        mount.forget(found.ino, 1);
        let file = mount.open(ROOT, found.ino, RDWR).await.unwrap();
        match file.write(0, IoBuf::from_slice(record.as_bytes()), append).await {
            Ok(_) => acknowledged.push(record),
            Err(error) => assert_eq!(error.errno, Errno::EIO, "{error}"),
        }
        file.release().await;
        rest_for_up_to(PAUSE_US.0).await;
    }
    acknowledged
}

#[test]
fn acknowledged_appends_survive_evictions() {
    for seed in 1..=SEEDS {
        with_cluster_of_seed(seed, move |cluster| async move {
            let mounts = [cluster.mount().await.0, cluster.mount().await.0];
            let file = mounts[0].create(ROOT, InodeId::ROOT, b"log", 0o100_644, 0, RDWR).await.unwrap().1;
            file.release().await;
            let stop = Rc::new(Cell::new(false));
            let acknowledged: Rc<RefCell<Vec<String>>> = Rc::default();
            let running = Rc::new(Cell::new(2 * PROGRAMS));
            for program in 0..2 * PROGRAMS {
                let (mount, stop) = (mounts[program as usize % 2].clone(), stop.clone());
                let (acknowledged, running) = (acknowledged.clone(), running.clone());
                rt::spawn(async move {
                    let records = append_records(mount, program, stop).await;
                    acknowledged.borrow_mut().extend(records);
                    running.set(running.get() - 1);
                });
            }
            for _ in 0..EVICTIONS {
                rest_for_up_to(PAUSE_US.1).await;
                cluster.replace_session(&mounts[rt::random_u64() as usize % 2]).await;
            }
            stop.set(true);
            while running.get() > 0 {
                rt::sleep(Duration::from_millis(1)).await;
            }
            let reader = cluster.client().await;
            let log = reader.open_named("log", RDONLY).await;
            let text = String::from_utf8(reader.read_all(&log).await).unwrap();
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            for record in acknowledged.borrow().iter() {
                let times = lines.iter().filter(|line| *line == record).count();
                assert_eq!(times, 1, "seed {seed}: record {record:?} is in the log");
            }
        });
    }
}
