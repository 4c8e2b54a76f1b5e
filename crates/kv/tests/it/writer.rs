//! The batching writer.

use crate::support::{block_on, guarded, poll_once, put};
use kv::{Blocking, Durability, Embedded, Engine, KvError, Memory, Outcome, Writer};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;

fn over_memory(durability: Durability, blocking: Blocking) -> (Arc<Memory>, Arc<Writer>) {
    let memory = Arc::new(Memory::new());
    let writer = Writer::with_blocking(memory.clone(), durability, blocking);
    (memory, Arc::new(writer))
}

const ALL: [(Durability, Blocking); 4] = [
    (Durability::Process, Blocking::Thread),
    (Durability::Process, Blocking::Inline),
    (Durability::Disk, Blocking::Thread),
    (Durability::Disk, Blocking::Inline),
];

#[test]
fn a_commit_is_applied_when_it_returns() {
    for (durability, blocking) in ALL {
        let (memory, writer) = over_memory(durability, blocking);
        assert_eq!(block_on(writer.commit(put("a", "1"))).unwrap(), Outcome::Applied);
        assert_eq!(memory.get(b"a").unwrap().unwrap(), "1");
        let lost = block_on(writer.commit(guarded(put("a", "2"), "owner", Some("me")))).unwrap();
        assert_eq!(lost, Outcome::GuardFailed);
        assert_eq!(memory.get(b"a").unwrap().unwrap(), "1");
    }
}

#[test]
fn strict_commits_survive_a_crash_and_relaxed_ones_after_sync() {
    for (durability, blocking) in ALL {
        let (memory, writer) = over_memory(durability, blocking);
        block_on(writer.commit(put("a", "1"))).unwrap();
        assert_eq!(writer.is_dirty(), durability == Durability::Process);
        if durability == Durability::Process {
            block_on(writer.sync()).unwrap();
        }
        assert!(!writer.is_dirty());
        memory.crash(0);
        assert_eq!(memory.get(b"a").unwrap().unwrap(), "1");
    }
}

#[test]
fn sync_is_skipped_without_new_commits() {
    let (_, writer) = over_memory(Durability::Process, Blocking::Thread);
    block_on(writer.sync()).unwrap();
    assert_eq!(writer.stats().persists, 0);
    block_on(writer.commit(put("a", "1"))).unwrap();
    block_on(writer.sync()).unwrap();
    block_on(writer.sync()).unwrap();
    assert_eq!(writer.stats().persists, 1);
}

#[test]
fn what_was_enqueued_together_is_committed_together_and_in_order() {
    for (durability, blocking) in ALL {
        let (memory, writer) = over_memory(durability, blocking);
        let first = writer.enqueue(guarded(put("a", "1"), "a", None));
        let second = writer.enqueue(guarded(put("a", "2"), "a", Some("1")));
        let third = writer.enqueue(guarded(put("a", "3"), "a", Some("2")));
        assert!(memory.get(b"a").unwrap().is_none());
        assert_eq!(block_on(writer.wait(&second)).unwrap(), Outcome::Applied);
        assert_eq!(block_on(writer.wait(&third)).unwrap(), Outcome::Applied);
        assert_eq!(block_on(writer.wait(&first)).unwrap(), Outcome::Applied);
        assert_eq!(memory.get(b"a").unwrap().unwrap(), "3");
        assert_eq!(writer.stats().batches, 3);
        assert_eq!(writer.stats().commits, 1);
    }
}

#[test]
fn a_batch_of_a_dropped_waiter_is_committed_before_later_ones() {
    for (durability, blocking) in ALL {
        let (memory, writer) = over_memory(durability, blocking);
        drop(writer.enqueue(put("a", "1")));
        block_on(writer.commit(guarded(put("b", "1"), "a", Some("1")))).unwrap();
        assert_eq!(memory.get(b"b").unwrap().unwrap(), "1");
    }
}

#[test]
fn many_threads_lose_and_reorder_nothing() {
    const THREADS: usize = 8;
    const COMMITS: usize = 300;
    for (durability, blocking) in ALL {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(Embedded::open(dir.path()).unwrap());
        let writer = Arc::new(Writer::with_blocking(engine.clone(), durability, blocking));
        // Each disk commit of a single thread costs a sync.
        let commits = if durability == Durability::Disk { COMMITS / 10 } else { COMMITS };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let writer = &writer;
                scope.spawn(move || {
                    for i in 0..commits {
                        let key = format!("t{thread}");
                        let before = (i > 0).then(|| (i - 1).to_string());
                        let batch = guarded(put(&key, &i.to_string()), &key, before.as_deref());
                        assert_eq!(block_on(writer.commit(batch)).unwrap(), Outcome::Applied);
                        if i % 16 == 0 {
                            block_on(writer.sync()).unwrap();
                        }
                    }
                });
            }
        });
        for thread in 0..THREADS {
            let last = engine.get(format!("t{thread}").as_bytes()).unwrap().unwrap();
            assert_eq!(last, (commits - 1).to_string());
        }
        assert_eq!(writer.stats().batches as usize, THREADS * commits);
    }
}

#[test]
fn dropped_waiters_do_not_block_others() {
    const THREADS: usize = 4;
    let (memory, writer) = over_memory(Durability::Process, Blocking::Thread);
    let committed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (writer, committed) = (&writer, &committed);
            scope.spawn(move || {
                for i in 0..500 {
                    let ticket = writer.enqueue(put(&format!("{thread}/{i}"), "v"));
                    if i % 3 == 0 {
                        let _ = poll_once(pin!(writer.wait(&ticket)));
                    } else {
                        assert_eq!(block_on(writer.wait(&ticket)).unwrap(), Outcome::Applied);
                    }
                    committed.fetch_add(1, Relaxed);
                }
                block_on(writer.commit(put(&format!("end {thread}"), "v"))).unwrap();
            });
        }
    });
    assert_eq!(committed.load(Relaxed), THREADS * 500);
    assert_eq!(memory.scan(b"", b"\xff", usize::MAX).unwrap().len(), THREADS * 501);
}

#[test]
fn more_than_the_queue_holds_is_committed_too() {
    let (memory, writer) = over_memory(Durability::Process, Blocking::Thread);
    let tickets: Vec<_> = (0..40_000).map(|i| writer.enqueue(put(&i.to_string(), "v"))).collect();
    block_on(writer.wait(tickets.last().unwrap())).unwrap();
    assert!(tickets.iter().all(|ticket| matches!(ticket.result(), Some(Ok(Outcome::Applied)))));
    assert_eq!(memory.scan(b"", b"\xff", usize::MAX).unwrap().len(), 40_000);
}

#[test]
fn after_an_error_every_commit_fails_with_the_same() {
    for (durability, blocking) in ALL {
        let (memory, writer) = over_memory(durability, blocking);
        block_on(writer.commit(put("a", "1"))).unwrap();
        memory.fail_with(Memory::no_space());
        let queued = writer.enqueue(put("a", "2"));
        assert!(matches!(block_on(writer.commit(put("a", "3"))), Err(KvError::NoSpace { .. })));
        assert!(matches!(queued.result(), Some(Err(KvError::NoSpace { .. }))));
        // The device has room again, but the content of the engine is unknown.
        memory.kill();
        assert!(matches!(block_on(writer.commit(put("a", "4"))), Err(KvError::NoSpace { .. })));
        assert!(matches!(block_on(writer.sync()), Err(KvError::NoSpace { .. })));
        assert_eq!(memory.get(b"a").unwrap().unwrap(), "1");
    }
}

#[test]
fn a_failed_sync_ends_all_writing() {
    for blocking in [Blocking::Thread, Blocking::Inline] {
        let (memory, writer) = over_memory(Durability::Process, blocking);
        block_on(writer.commit(put("a", "1"))).unwrap();
        memory.fail_with(KvError::Io { path: "memory".into(), cause: "broken".into() });
        assert!(matches!(block_on(writer.sync()), Err(KvError::Io { .. })));
        memory.kill();
        assert!(matches!(block_on(writer.commit(put("a", "2"))), Err(KvError::Io { .. })));
    }
}

/// An engine whose first sync fails, after a while. The kernel reports that only once: later syncs
/// seem to succeed.
struct FailsOnce {
    memory: Memory,
    asked: AtomicUsize,
    may_fail: (Mutex<bool>, Condvar),
}

impl Engine for FailsOnce {
    fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, KvError> {
        self.memory.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<kv::Pair>, KvError> {
        self.memory.scan(from, to, limit)
    }

    fn apply(&self, batches: &[kv::Batch]) -> Result<Vec<Outcome>, KvError> {
        self.memory.apply(batches)
    }

    fn persist(&self) -> Result<(), KvError> {
        if self.asked.fetch_add(1, Relaxed) > 0 {
            return Ok(());
        }
        let (may_fail, changed) = &self.may_fail;
        drop(changed.wait_while(may_fail.lock().unwrap(), |may_fail| !*may_fail).unwrap());
        Err(KvError::Io { path: "memory".into(), cause: "broken".into() })
    }
}

#[test]
fn a_failed_sync_fails_for_concurrent_callers() {
    let engine = Arc::new(FailsOnce {
        memory: Memory::new(),
        asked: AtomicUsize::new(0),
        may_fail: Default::default(),
    });
    let writer = Writer::with_blocking(engine.clone(), Durability::Process, Blocking::Thread);
    block_on(writer.commit(put("a", "1"))).unwrap();
    let (mut first, mut second) = (pin!(writer.sync()), pin!(writer.sync()));
    assert!(poll_once(first.as_mut()).is_pending());
    while engine.asked.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    assert!(poll_once(second.as_mut()).is_pending());
    *engine.may_fail.0.lock().unwrap() = true;
    engine.may_fail.1.notify_all();
    assert!(matches!(block_on(second), Err(KvError::Io { .. })));
    assert!(matches!(block_on(first), Err(KvError::Io { .. })));
    assert!(writer.is_dirty());
    assert!(matches!(block_on(writer.sync()), Err(KvError::Io { .. })));
}

#[test]
fn an_enqueued_batch_is_committed_only_for_a_waiter() {
    let (memory, writer) = over_memory(Durability::Process, Blocking::Inline);
    let ticket = writer.enqueue(put("a", "1"));
    assert!(!ticket.is_complete());
    assert!(memory.get(b"a").unwrap().is_none());
    assert!(matches!(poll_once(pin!(writer.wait(&ticket))), Poll::Ready(Ok(Outcome::Applied))));
    assert!(ticket.is_complete());
}
