//! Reservations of space on targets that share a disk.

use super::cluster::{Application, CHUNK, with_cluster_on_disk};
use std::path::Path;
use types::{ByteRange, Errno};

const DISK: u64 = 512 << 20;
/// Reserved space: an eighth of the disk.
const RESERVE: u64 = DISK / 8;
/// Space that metadata takes meanwhile, in bytes.
const SLACK: u64 = 1 << 20;

async fn free() -> u64 {
    rt::file_system_space(Path::new("/")).await.unwrap().1
}

#[test]
fn a_reservation_that_does_not_fit_takes_no_space() {
    with_cluster_on_disk(DISK, |cluster| async move {
        let one = cluster.client().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 4 * CHUNK, b'x').await;
        one.fallocate(&file, 0, ByteRange::new(0, 16 << 20)).await.unwrap();
        let before = free().await;
        // Each of the three targets has space for a third of it.
        let range = ByteRange::new(0, 2 * DISK);
        let error = one.fallocate(&file, 0, range).await.unwrap_err();
        assert_eq!(error.errno, Errno::ENOSPC, "{error}");
        assert!(error.message.contains("on the disk of target"), "{error}");
        assert_eq!(free().await, before);
        assert_eq!(one.size(file.ino()).await, 16 << 20);
        assert_eq!(one.read_all(&file).await[..4 * CHUNK], vec![b'x'; 4 * CHUNK]);
    });
}

#[test]
fn reservations_at_the_same_time_take_all_of_their_space_or_none() {
    with_cluster_on_disk(DISK, |cluster| async move {
        let [one, two] = cluster.clients().await;
        let (first, second) = (one.create_file("first").await, two.create_file("second").await);
        let before = free().await;
        // Both fit on the disk, but not beside the reserved space.
        let bytes = (before - RESERVE / 2) / 2;
        let range = ByteRange::new(0, bytes / (3 * CHUNK as u64) * (3 * CHUNK as u64));
        let asked = [one.fallocate(&first, 0, range), two.fallocate(&second, 0, range)];
        let outcomes = rt::join_all(asked.into()).await;
        let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(
            !refused.is_empty() && refused.iter().all(|error| error.errno == Errno::ENOSPC),
            "{refused:?}"
        );
        let taken = (outcomes.len() - refused.len()) as u64 * range.len();
        let now = free().await;
        assert!(now + SLACK >= RESERVE, "{now} bytes are free");
        assert!(now + taken + SLACK >= before, "{before} were free, {taken} are reserved, {now} are left");
    });
}
