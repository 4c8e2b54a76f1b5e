//! Sizes and times of a file that several clients use.

use super::cluster::{Application, CHUNK, RDONLY, RDWR, ROOT, run_lengths, with_cluster};
use types::{ByteRange, InodeId, SetAttr, SetTime, Timestamp};

#[test]
fn an_extension_is_seen_at_once_while_the_writer_has_the_file_open() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        let other = two.open_named("f", RDONLY).await;
        for end in [1, 4096, CHUNK, 3 * CHUNK + 7, 20 * CHUNK] {
            let old = one.size(file.ino()).await as usize;
            one.fill(&file, old, end - old, b'x').await;
            assert_eq!(two.size(file.ino()).await, end as u64);
            assert_eq!(two.read_all(&other).await.len(), end);
        }
    });
}

#[test]
fn a_truncate_is_seen_by_the_other_client_without_old_data() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 4 * CHUNK, b'x').await;
        let other = two.open_named("f", RDWR).await;
        two.fill(&other, 0, 10, b'y').await;
        one.set_size(file.ino(), CHUNK + 5).await;
        assert_eq!(two.size(file.ino()).await, (CHUNK + 5) as u64);
        assert_eq!(run_lengths(&two.read_all(&other).await), [(b'y', 10), (b'x', CHUNK - 5)]);
        two.set_size(file.ino(), 3 * CHUNK).await;
        let expected = [(b'y', 10), (b'x', CHUNK - 5), (0, 2 * CHUNK - 5)];
        assert_eq!(run_lengths(&one.read_all(&file).await), expected);
        // A close by a client that knew a larger size doesn't extend the file again.
        one.set_size(file.ino(), 20).await;
        two.release(other).await;
        one.release(file.clone()).await;
        assert_eq!(one.size(file.ino()).await, 20);
        assert_eq!(cluster.client().await.size(file.ino()).await, 20);
    });
}

#[test]
fn a_time_that_one_sets_is_seen_by_the_other() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, CHUNK, b'x').await;
        let written = one.getattr(file.ino()).await.unwrap().mtime;
        assert_eq!(two.getattr(file.ino()).await.unwrap().mtime, written);
        let then = Timestamp::new(1_000_000_000, 5);
        let set = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
        two.setattr(ROOT, file.ino(), set, None).await.unwrap();
        assert_eq!(one.getattr(file.ino()).await.unwrap().mtime, then);
        assert_eq!(two.getattr(file.ino()).await.unwrap().mtime, then);
        one.release(file.clone()).await;
        assert_eq!(two.getattr(file.ino()).await.unwrap().mtime, then);
    });
}

#[test]
fn all_clients_see_the_same_times_after_a_layout_change() {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 4 * CHUNK, b'x').await;
        for step in ["cut", "reserve", "punch", "cut to nothing"] {
            let range = ByteRange::new(0, CHUNK as u64 / 2);
            match step {
                "cut" => one.set_size(file.ino(), CHUNK + 5).await,
                "reserve" => one.fallocate(&file, 0, range).await.unwrap(),
                "punch" => one.fallocate(&file, PUNCH_HOLE | KEEP_SIZE, range).await.unwrap(),
                _ => one.set_size(file.ino(), 0).await,
            }
            let before = one.getattr(file.ino()).await.unwrap();
            // The file is open for writing on the other client: this one also asks the targets,
            // which have their own times.
            let seen = two.getattr(file.ino()).await.unwrap();
            assert_eq!((seen.mtime, seen.ctime), (before.mtime, before.ctime), "{step}, by the other");
            let after = one.getattr(file.ino()).await.unwrap();
            assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime), "{step}, later");
        }
    });
}

/// The kernel relies on the size that comes with a name, and truncates its pages to it.
#[test]
fn a_lookup_returns_the_current_size_of_a_file_written_elsewhere() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, CHUNK, b'x').await;
        assert_eq!(two.size(file.ino()).await, CHUNK as u64, "from now on it is shared");
        one.fill(&file, CHUNK, CHUNK, b'x').await;
        let found = two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap();
        assert_eq!(found.size, 2 * CHUNK as u64);
    });
}
