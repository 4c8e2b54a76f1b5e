//! Changes that were in flight when the metadata service was replaced: each is applied once, and as
//! a whole.

use super::cluster::{Application, CHUNK, Cluster, RDWR, run_lengths, targets, with_cluster};
use client::{Client, WriteOptions};
use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Result, TargetId};
use wire::{MetaOp, MetaRequest, MetaResponse, StorageReply, StorageRequest};

/// More than a client waits for in-flight requests before it registers again.
const LONG: Duration = Duration::from_secs(9);
/// Size of a record, in bytes; as many lie before the boundary of two chunks.
const RECORD: usize = 400;
const IN_FRONT: usize = 150;

/// Which requests get no answer for now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    /// Those to one target, before they arrive.
    RequestsTo(TargetId),
    /// All of them, after they were executed.
    Answers,
}

/// A connection to storage.
struct Way {
    service: Arc<dyn Handler<StorageRequest, StorageReply>>,
    held: Mutex<Held>,
    changed: Event,
}

impl Way {
    fn new(cluster: &Cluster) -> Arc<Way> {
        let service = cluster.storage.clone();
        Arc::new(Way { service, held: Mutex::new(Held::Nothing), changed: Event::new() })
    }

    fn hold(&self, held: Held) {
        *self.held.lock() = held;
        self.changed.set();
        self.changed.clear();
    }

    async fn wait_while(&self, is_held: impl Fn(Held) -> bool) {
        loop {
            let changed = self.changed.wait();
            if !is_held(*self.held.lock()) {
                return;
            }
            changed.await;
        }
    }
}

impl Handler<StorageRequest, StorageReply> for Way {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(async move {
            let target = request.target;
            self.wait_while(|held| held == Held::RequestsTo(target)).await;
            let reply = self.service.handle(request, payload).await;
            self.wait_while(|held| held == Held::Answers).await;
            reply
        })
    }
}

/// A concurrent operation of an application.
struct Task(Rc<Cell<bool>>);

impl Task {
    fn start(work: impl Future<Output = ()> + 'static) -> Task {
        let done = Rc::new(Cell::new(false));
        let ended = done.clone();
        rt::spawn(async move {
            work.await;
            ended.set(true);
        });
        Task(done)
    }

    async fn end(self) {
        while !self.0.get() {
            rt::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns the content of a log after an append during which the metadata service is replaced
/// several times.
async fn log_after(
    restarts: u32,
    held: Held,
    (cluster, way): (&Cluster, &Way),
    client: &Arc<Client>,
) -> Vec<u8> {
    let file = client.create_file("log").await;
    client.fill(&file, 0, CHUNK - IN_FRONT, b'x').await;
    way.hold(held);
    let (program, handle) = (client.clone(), file.clone());
    let task = Task::start(async move { program.append(&handle, &[b'a'; RECORD]).await });
    for _ in 0..restarts {
        rt::sleep(Duration::from_millis(100)).await;
        cluster.restart_metadata().await;
        rt::sleep(LONG).await;
    }
    way.hold(Held::Nothing);
    task.end().await;
    client.append(&file, b"end").await;
    let other = cluster.client().await;
    other.read_all(&other.open_named("log", RDWR).await).await
}

/// Expected content of the log.
fn whole() -> Vec<u8> {
    [vec![b'x'; CHUNK - IN_FRONT], vec![b'a'; RECORD], b"end".to_vec()].concat()
}

/// The other targets have their part of it when the service recovers the size.
#[test]
fn an_append_that_has_not_reached_one_target_leaves_nothing_torn() {
    for target in targets() {
        for restarts in 1..=2 {
            with_cluster(move |cluster| async move {
                let way = Way::new(&cluster);
                let client = cluster.client_over(way.clone()).await;
                let found = log_after(restarts, Held::RequestsTo(target), (&cluster, &way), &client).await;
                assert_eq!(
                    run_lengths(&found),
                    run_lengths(&whole()),
                    "target {target}, {restarts} restarts"
                );
            });
        }
    }
}

/// Storage has executed it each time, and the client doesn't know.
#[test]
fn an_append_whose_answers_are_lost_is_applied_once() {
    for restarts in 1..=3 {
        with_cluster(move |cluster| async move {
            let way = Way::new(&cluster);
            let client = cluster.client_over(way.clone()).await;
            let found = log_after(restarts, Held::Answers, (&cluster, &way), &client).await;
            assert_eq!(run_lengths(&found), run_lengths(&whole()), "{restarts} restarts");
        });
    }
}

/// Storage answers after the lease has ended, and before the next service gets the file's size.
#[test]
fn writes_past_the_end_that_are_answered_late_stay() {
    with_cluster(|cluster| async move {
        let way = Way::new(&cluster);
        let client = cluster.client_over(way.clone()).await;
        let file = client.create_file("f").await;
        client.fill(&file, 0, CHUNK, b'x').await;
        way.hold(Held::Answers);
        let tasks = [(CHUNK, b'1'), (2 * CHUNK, b'2'), (3 * CHUNK, b'3')].map(|(offset, byte)| {
            let (program, handle) = (client.clone(), file.clone());
            Task::start(async move { program.fill(&handle, offset, CHUNK, byte).await })
        });
        rt::sleep(Duration::from_millis(100)).await;
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_secs(1)).await;
        way.hold(Held::Nothing);
        for task in tasks {
            task.end().await;
        }
        let other = cluster.client().await;
        let found = other.read_all(&other.open_named("f", RDWR).await).await;
        assert_eq!(run_lengths(&found), [b'x', b'1', b'2', b'3'].map(|byte| (byte, CHUNK)));
    });
}

/// An append that was acknowledged at once is in the file as a whole, or the application gets an
/// error and none of it is in the file.
#[test]
fn a_delayed_append_is_stored_whole_or_not_at_all() {
    for target in targets() {
        with_cluster(move |cluster| async move {
            let way = Way::new(&cluster);
            let client = cluster.client_with_write_behind_over(way.clone()).await;
            let file = client.create_file("log").await;
            client.fill(&file, 0, CHUNK - IN_FRONT, b'x').await;
            client.flush(&file).await.unwrap();
            way.hold(Held::RequestsTo(target));
            client.append(&file, &[b'a'; RECORD]).await;
            cluster.restart_metadata().await;
            rt::sleep(LONG).await;
            way.hold(Held::Nothing);
            let is_stored = client.flush(&file).await.is_ok();
            let other = cluster.client().await;
            let found = other.read_all(&other.open_named("log", RDWR).await).await;
            let expected = [vec![b'x'; CHUNK - IN_FRONT], vec![b'a'; if is_stored { RECORD } else { 0 }]];
            assert_eq!(run_lengths(&found), run_lengths(&expected.concat()), "target {target}");
        });
    }
}

/// A connection to the metadata service on which the answer to a truncation is lost. The request is
/// retransmitted when the test asks for it.
struct Repeating {
    service: Arc<dyn Handler<MetaRequest, MetaResponse>>,
    again: Event,
    cuts: Mutex<u32>,
}

impl Handler<MetaRequest, MetaResponse> for Repeating {
    fn handle(&self, request: MetaRequest, payload: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
        Box::pin(async move {
            if matches!(request.op, MetaOp::Truncate { .. }) {
                _ = self.service.handle(request.clone(), payload.clone()).await;
                *self.cuts.lock() += 1;
                self.again.wait().await;
            }
            self.service.handle(request, payload).await
        })
    }
}

/// Other clients have seen it, and extended the file.
#[test]
fn a_truncation_whose_answer_is_lost_is_applied_once() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let way = Arc::new(Repeating {
            service: cluster.metadata.handler(),
            again: Event::new(),
            cuts: Mutex::new(0),
        });
        let two = cluster.client_through(way.clone()).await;
        let file = two.create_file("f").await;
        two.fill(&file, 0, 2 * CHUNK, b'x').await;
        let program = two.clone();
        let ino = file.ino();
        let task = Task::start(async move { program.set_size(ino, CHUNK).await });
        rt::sleep(Duration::from_millis(100)).await;
        assert_eq!(*way.cuts.lock(), 1);
        cluster.restart_metadata().await;
        rt::sleep(LONG).await;
        let theirs = one.open_named("f", RDWR).await;
        one.append(&theirs, &[b'y'; CHUNK]).await;
        way.again.set();
        task.end().await;
        assert_eq!(run_lengths(&one.read_all(&theirs).await), [(b'x', CHUNK), (b'y', CHUNK)]);
        assert_eq!(run_lengths(&two.read_all(&file).await), [(b'x', CHUNK), (b'y', CHUNK)]);
        let how = WriteOptions { append: true, ..WriteOptions::default() };
        two.write(&file, 0, IoBuf::from_slice(b"z"), how).await.unwrap();
        assert_eq!(one.size(ino).await, 2 * CHUNK as u64 + 1);
    });
}
