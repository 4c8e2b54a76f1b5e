//! Files that applications close while others open them.

use super::cluster::{Application, CHUNK, RDONLY, ROOT, with_cluster};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Size of a file whose opens wait for a close in progress, in bytes: more than 1 MiB.
const LEN: usize = 20 * CHUNK;

#[test]
fn a_file_is_opened_while_descriptors_for_writing_are_closed_all_the_time() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, LEN, b'x').await;
        one.flush(&file).await.unwrap();
        let (closer, closed, over) = (one.clone(), file.clone(), Rc::new(Cell::new(false)));
        let is_over = over.clone();
        rt::spawn(async move {
            while !is_over.get() {
                closer.flush(&closed).await.unwrap();
                rt::sleep(Duration::from_millis(1)).await;
            }
        });
        let opened = rt::timeout(Duration::from_secs(1), one.open(ROOT, file.ino(), RDONLY)).await;
        over.set(true);
        let reader = opened.expect("it waits for a moment only").unwrap();
        one.release(reader).await;
        one.release(file).await;
    });
}
