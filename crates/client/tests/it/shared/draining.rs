//! Draining of targets while their files are in use.

use super::cluster::{Application, CHUNK, RDONLY, RDWR, ROOT, TARGETS, run_lengths, with_cluster};
use client::{ReadOptions, WriteOptions};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use types::InodeId;

/// Size of a file with several chunks on every target, the last of them partial, in bytes.
const LONG: usize = 40 * CHUNK + 1234;

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at / CHUNK * 31 + salt) as u8).collect()
}

#[test]
fn a_file_in_use_moves_and_keeps_every_byte() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        let data = pattern(LONG, 0);
        one.write(&file, 0, IoBuf::from_slice(&data), WriteOptions::default()).await.unwrap();
        let other = two.open_named("f", RDONLY).await;
        assert_eq!(two.read_all(&other).await, data);
        cluster.drain(2, true);
        cluster.wait_until_empty(2).await;
        assert!(cluster.chunk_files(2).await.is_empty());
        assert_eq!(two.read_all(&other).await, data);
        one.fill(&file, 3 * CHUNK + 5, 2 * CHUNK, b'z').await;
        let mut expected = data.clone();
        expected[3 * CHUNK + 5..5 * CHUNK + 5].fill(b'z');
        assert_eq!(two.read_all(&other).await, expected);
        assert!(cluster.chunk_files(2).await.is_empty(), "nobody writes where it has been");
        // And from there, with what was migrated, to a target that already has a chunk file of the
        // file.
        cluster.drain(3, true);
        cluster.wait_until_empty(3).await;
        assert!(cluster.chunk_files(3).await.is_empty());
        assert_eq!(cluster.chunk_files(1).await.len(), TARGETS as usize);
        assert_eq!(one.read_all(&file).await, expected);
        // And back, since there is space again.
        cluster.drain(2, false);
        cluster.drain(3, false);
        cluster.drain(1, true);
        cluster.wait_until_empty(1).await;
        assert!(cluster.chunk_files(1).await.is_empty());
        assert_eq!(two.read_all(&other).await, expected);
        one.unlink(ROOT, InodeId::ROOT, b"f").await.unwrap();
        let ino = file.ino();
        one.release(file).await;
        two.release(other).await;
        one.forget(ino, 1);
        two.forget(ino, 1);
        rt::sleep(Duration::from_secs(30)).await;
        for target in 1..=TARGETS {
            assert!(cluster.chunk_files(target).await.is_empty(), "chunk files on {target}");
        }
    });
}

#[test]
fn holes_sizes_and_names_without_content_survive_a_move() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let sparse = one.create_file("sparse").await;
        one.fill(&sparse, 7 * CHUNK, 100, b's').await;
        one.set_size(sparse.ino(), 30 * CHUNK + 1).await;
        let short = one.create_file("short").await;
        one.fill(&short, 0, 100, b'i').await;
        let cut = one.create_file("cut").await;
        one.fill(&cut, 0, 9 * CHUNK, b'c').await;
        one.set_size(cut.ino(), 4 * CHUNK + 10).await;
        for target in 1..=TARGETS {
            cluster.drain(target, true);
            cluster.wait_until_empty(target).await;
            assert!(cluster.chunk_files(target).await.is_empty());
            cluster.drain(target, false);
        }
        // Truncated data must not reappear.
        one.set_size(cut.ino(), 9 * CHUNK).await;
        let expected = [
            ("sparse", vec![(0, 7 * CHUNK), (b's', 100), (0, 23 * CHUNK - 99)]),
            ("short", vec![(b'i', 100)]),
            ("cut", vec![(b'c', 4 * CHUNK + 10), (0, 5 * CHUNK - 10)]),
        ];
        for (name, content) in expected {
            let file = two.open_named(name, RDONLY).await;
            assert_eq!(run_lengths(&two.read_all(&file).await), content, "{name}");
        }
    });
}

#[test]
fn a_file_moves_while_it_is_written_all_the_time() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.write(&file, 0, IoBuf::from_slice(&pattern(LONG, 0)), WriteOptions::default()).await.unwrap();
        let other = two.open_named("f", RDWR).await;
        let (client, mine) = (one.clone(), file.clone());
        let (written, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        let (result, ended) = (written.clone(), done.clone());
        rt::spawn(async move {
            let mut expected = pattern(LONG, 0);
            for step in 0..400_usize {
                let (at, byte) = ((step * 7919 * 61) % (LONG - 5000), step as u8);
                client.fill(&mine, at, 5000, byte).await;
                expected[at..at + 5000].fill(byte);
                rt::sleep(Duration::from_millis(10)).await;
            }
            result.replace(expected);
            ended.set(ended.get() + 1);
        });
        // Another client reads, so that the file is shared part of the time.
        let ended = done.clone();
        rt::spawn(async move {
            for at in 0..40 {
                let buf = IoBuf::alloc(4096);
                two.read(&other, (at * CHUNK) as u64, buf, ReadOptions::default()).await.unwrap();
                rt::sleep(Duration::from_millis(90)).await;
            }
            ended.set(ended.get() + 1);
        });
        cluster.drain(1, true);
        cluster.wait_until_empty(1).await;
        assert!(cluster.chunk_files(1).await.is_empty());
        while done.get() < 2 {
            rt::sleep(Duration::from_millis(100)).await;
        }
        let expected = written.take();
        let last = cluster.client().await;
        let again = last.open_named("f", RDONLY).await;
        assert_eq!(last.read_all(&again).await, expected);
        assert!(cluster.chunk_files(1).await.is_empty());
    });
}

/// Number of files, each with data on every target: more than migrate at a time.
const FILES: usize = 60;

#[test]
fn the_next_metadata_service_completes_a_drain() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let mut expected = Vec::new();
        for number in 0..FILES {
            let file = one.create_file(&format!("f{number}")).await;
            let data = pattern(3 * CHUNK + number, number);
            one.write(&file, 0, IoBuf::from_slice(&data), WriteOptions::default()).await.unwrap();
            one.release(file).await;
            expected.push(data);
        }
        cluster.drain(2, true);
        for wait_us in [0, 300, 900, 2_500, 7_000] {
            while cluster.moved(2) == 0 {
                rt::sleep(Duration::from_micros(100)).await;
            }
            rt::sleep(Duration::from_micros(wait_us)).await;
            assert!(!cluster.is_empty(2), "in the middle");
            cluster.restart_metadata().await;
        }
        cluster.wait_until_empty(2).await;
        rt::sleep(Duration::from_secs(30)).await;
        assert!(cluster.chunk_files(2).await.is_empty());
        let rest = cluster.chunk_files(1).await.len() + cluster.chunk_files(3).await.len();
        assert_eq!(rest, FILES * TARGETS as usize, "no chunk file too many");
        for (number, data) in expected.iter().enumerate() {
            let file = one.open_named(&format!("f{number}"), RDONLY).await;
            assert!(one.read_all(&file).await == *data, "f{number}");
        }
    });
}

#[test]
fn a_cancelled_drain_leaves_the_remaining_files() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 9 * CHUNK, b'x').await;
        cluster.drain(1, true);
        cluster.drain(1, false);
        rt::sleep(Duration::from_secs(20)).await;
        assert_eq!(cluster.chunk_files(1).await.len(), 1);
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'x', 9 * CHUNK)]);
    });
}
