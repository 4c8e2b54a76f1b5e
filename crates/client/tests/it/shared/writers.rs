//! Several clients write one file.

use super::cluster::{Application, CHUNK, RDONLY, RDWR, run_lengths, with_cluster};

#[test]
fn one_client_reads_what_another_wrote_inline_and_in_chunks() {
    with_cluster(|cluster| async move {
        let [one, two, three] = cluster.clients().await;
        for (name, len) in [("small", 100), ("large", 5 * CHUNK)] {
            let file = one.create_file(name).await;
            one.fill(&file, 0, len, b'a').await;
            let other = two.open_named(name, RDONLY).await;
            assert_eq!(run_lengths(&two.read_all(&other).await), [(b'a', len)]);
            one.fill(&file, 10, 20, b'b').await;
            assert_eq!(run_lengths(&two.read_all(&other).await), [(b'a', 10), (b'b', 20), (b'a', len - 30)]);
            let third = three.open_named(name, RDWR).await;
            three.fill(&third, 0, 5, b'c').await;
            let expected = [(b'c', 5), (b'a', 5), (b'b', 20), (b'a', len - 30)];
            assert_eq!(run_lengths(&one.read_all(&file).await), expected);
            assert_eq!(run_lengths(&two.read_all(&other).await), expected);
            one.release(file).await;
            three.release(third).await;
            assert_eq!(run_lengths(&two.read_all(&other).await), expected);
            two.release(other).await;
        }
    });
}

#[test]
fn fsync_covers_writes_of_other_clients() {
    with_cluster(|cluster| async move {
        let [one, two] = [cluster.client().await, cluster.client().await];
        let mine = one.create_file("f").await;
        one.fill(&mine, 0, 4 * CHUNK, b'a').await;
        let theirs = two.open_named("f", RDWR).await;
        two.fill(&theirs, 0, CHUNK, b'b').await;
        one.fsync(&mine, false).await.unwrap();
        two.fill(&theirs, CHUNK, CHUNK, b'c').await;
        let before = cluster.storage_requests();
        one.fsync(&mine, false).await.unwrap();
        assert!(cluster.storage_requests() > before, "nobody has been asked to sync");
    });
}

#[test]
fn two_writers_at_different_ranges_lose_no_byte() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let mine = one.create_file("f").await;
        let theirs = two.open_named("f", RDWR).await;
        const PARTS: usize = 24;
        const PART: usize = 10_000;
        let first = async {
            for part in (0..PARTS).step_by(2) {
                one.fill(&mine, part * PART, PART, 1 + part as u8).await;
            }
        };
        let second = async {
            for part in (1..PARTS).step_by(2) {
                two.fill(&theirs, part * PART, PART, 1 + part as u8).await;
            }
        };
        both(first, second).await;
        let expected: Vec<_> = (0..PARTS).map(|part| (1 + part as u8, PART)).collect();
        assert_eq!(run_lengths(&one.read_all(&mine).await), expected);
        assert_eq!(run_lengths(&two.read_all(&theirs).await), expected);
        assert_eq!(one.size(mine.ino()).await, (PARTS * PART) as u64);
        assert_eq!(two.size(mine.ino()).await, (PARTS * PART) as u64);
        one.release(mine).await;
        two.release(theirs).await;
        let third = cluster.client().await;
        let file = third.open_named("f", RDONLY).await;
        assert_eq!(run_lengths(&third.read_all(&file).await), expected);
    });
}

#[test]
fn concurrent_writes_have_one_order_on_all_blocks() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let mine = one.create_file("f").await;
        one.fill(&mine, 0, 2 * CHUNK, b'-').await;
        let theirs = two.open_named("f", RDWR).await;
        for round in 0..10u8 {
            let first = one.fill(&mine, 100, CHUNK, b'a' + round);
            let second = two.fill(&theirs, 4196, CHUNK, b'A' + round);
            both(first, second).await;
            let bytes = one.read_all(&mine).await;
            assert_eq!(bytes, two.read_all(&theirs).await);
            assert!(bytes[100..4196].iter().all(|&byte| byte == b'a' + round));
            assert!(bytes[100 + CHUNK..4196 + CHUNK].iter().all(|&byte| byte == b'A' + round));
            let between = &bytes[4196..100 + CHUNK];
            assert!(between.iter().all(|&byte| byte == b'a' + round || byte == b'A' + round));
        }
    });
}

/// Runs two futures of different types concurrently.
pub(crate) async fn both(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let futures: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> =
        vec![Box::pin(first), Box::pin(second)];
    rt::join_all(futures).await;
}
