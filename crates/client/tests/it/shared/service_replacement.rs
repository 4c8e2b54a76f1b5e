//! Requests to storage that are in flight while the metadata service is replaced.

use super::cluster::{Application, CHUNK, Cluster, RDWR, run_lengths, with_cluster};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::channel::CuttableRoute;
use wire::{StorageReply, StorageRequest};

/// Less than a client waits for in-flight requests, and more.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(9);

type Way = Arc<CuttableRoute<StorageRequest, StorageReply>>;

/// Runs an operation whose requests to storage are held up until the metadata service has been
/// replaced and some time has passed.
async fn over_a_restart<T: 'static>(
    cluster: &Cluster,
    way: &Way,
    time: Duration,
    work: impl Future<Output = T> + 'static,
) -> T {
    let done = Rc::new(RefCell::new(None));
    let told = done.clone();
    way.cut();
    rt::spawn(async move {
        let output = work.await;
        *told.borrow_mut() = Some(output);
    });
    rt::sleep(Duration::from_millis(100)).await;
    cluster.restart_metadata().await;
    rt::sleep(time).await;
    assert!(done.borrow().is_none(), "its requests are held up");
    way.restore();
    loop {
        rt::sleep(Duration::from_millis(10)).await;
        if let Some(output) = done.borrow_mut().take() {
            return output;
        }
    }
}

/// The service had recovered the size before the write arrived.
#[test]
fn a_late_write_extends_the_file() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let (two, way) = cluster.client_with_cuttable_storage().await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        let (client, handle) = (two.clone(), file.clone());
        let write = async move { client.fill(&handle, CHUNK, CHUNK, b'y').await };
        over_a_restart(&cluster, &way, LONG, write).await;
        assert_eq!(one.size(file.ino()).await, 2 * CHUNK as u64);
        let seen = one.read_all(&one.open_named("f", RDWR).await).await;
        assert_eq!(run_lengths(&seen), [(b'x', CHUNK), (b'y', CHUNK)]);
    });
}

/// Other sessions get no lease before it has arrived: otherwise it would overwrite their records.
#[test]
fn a_late_append_overwrites_nothing() {
    let records = beside_an_append_that_is_held_up(SHORT);
    assert!(["firstlatebeside", "firstbesidelate"].contains(&&*records), "{records}");
}

/// Other sessions get the lease if a target doesn't answer for long; the append must not be
/// executed after that.
#[test]
fn a_long_delayed_append_follows_those_of_others() {
    assert_eq!(beside_an_append_that_is_held_up(LONG), "firstbesidelate");
}

/// Returns the final content of the file.
fn beside_an_append_that_is_held_up(time: Duration) -> String {
    let found: Arc<Mutex<String>> = Arc::default();
    let told = found.clone();
    with_cluster(move |cluster| async move {
        let one = cluster.client().await;
        let (two, way) = cluster.client_with_cuttable_storage().await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        let theirs = one.open_named("f", RDWR).await;
        let (client, handle) = (two.clone(), file.clone());
        two.append(&file, b"first").await;
        let append = async move { client.append(&handle, b"late").await };
        let beside = one.clone();
        rt::spawn(async move {
            rt::sleep(Duration::from_secs(1)).await;
            beside.append(&theirs, b"beside").await;
        });
        over_a_restart(&cluster, &way, time, append).await;
        let handle = one.open_named("f", RDWR).await;
        while one.size(handle.ino()).await < (CHUNK + 15) as u64 {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let records = one.read_all(&handle).await.split_off(CHUNK);
        *told.lock().unwrap() = String::from_utf8_lossy(&records).into_owned();
    });
    found.lock().unwrap().clone()
}
