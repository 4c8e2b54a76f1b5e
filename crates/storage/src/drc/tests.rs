//! These run on a simulated machine, where time passes at once and processes die on request.

use super::*;
use chunkstore::{Identity, Options};
use rt::sim::{HostId, World};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use types::{ChunkFileId, TargetId};

const INO: ChunkFileId = ChunkFileId(9);
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

fn number(lane: u32, sequence: u32) -> SlotSequence {
    SlotSequence { slot: lane, sequence }
}

struct Process {
    store: Arc<Store>,
    once: DuplicateRequestCache,
}

impl Process {
    async fn start() -> Process {
        let (dir, identity) = (Path::new("/t"), Identity { cluster: "c".into(), target: TargetId(1) });
        if Store::identify(dir).await.unwrap().is_none() {
            Store::format_with_log(dir, &identity, 0).await.unwrap();
        }
        let (store, _) = Store::open(dir, &identity, Options::default()).await.unwrap();
        let once = DuplicateRequestCache::load(&store, |_| false);
        once.set_open();
        Process { store, once }
    }

    async fn begin(&self, session: SessionId, number: SlotSequence) -> Result<DrcLookup<'_>> {
        self.once.begin(self.store.drc_rows(), session, number, INO).await
    }

    /// Executes a change that isn't done yet.
    async fn change(&self, session: SessionId, number: SlotSequence) {
        let Ok(DrcLookup::Execute(doing)) = self.begin(session, number).await else {
            panic!("it isn't done yet")
        };
        doing.write_done_row().await.unwrap();
        doing.end(Ok(())).await.unwrap();
    }

    async fn wait_for(&self, session: SessionId, own: Option<SlotSequence>) -> Result<()> {
        self.once.wait_until_open(self.store.drc_rows(), session, INO, own).await
    }
}

/// Runs a closure on a machine; the process dies when it returns.
fn on(world: &mut World, host: HostId, life: impl AsyncFnOnce(Rc<Process>) + 'static) {
    let lived = world.run(host, async move { life(Rc::new(Process::start().await)).await });
    lived.expect("nothing waits for ever");
    world.kill(host);
}

fn machine() -> (World, HostId) {
    let mut world = World::new(1);
    let host = world.add_host("storage");
    (world, host)
}

#[test]
fn an_executed_change_is_not_executed_again() {
    let (mut world, host) = machine();
    on(&mut world, host, async |process| {
        process.change(A, number(0, 1)).await;
        process.change(B, number(0, 1)).await;
        assert!(matches!(process.begin(A, number(0, 1)).await, Ok(DrcLookup::Cached(Ok(())))));
        process.change(A, number(0, 2)).await;
        let outdated = process.begin(A, number(0, 1)).await.err().expect("it was answered long ago");
        assert_eq!(outdated.errno, OUT_OF_SEQUENCE);
    });
    on(&mut world, host, async |process| {
        assert!(!process.once.has_closed_files());
        assert!(matches!(process.begin(A, number(0, 2)).await, Ok(DrcLookup::Cached(Ok(())))));
        assert!(matches!(process.begin(B, number(0, 1)).await, Ok(DrcLookup::Cached(Ok(())))));
        process.change(B, number(0, 2)).await;
    });
}

#[test]
fn a_failure_is_recorded_too() {
    let (mut world, host) = machine();
    on(&mut world, host, async |process| {
        let Ok(DrcLookup::Execute(doing)) = process.begin(A, number(0, 1)).await else { panic!("it is new") };
        assert_eq!(doing.end(Err(Errno::ENOSPC.into())).await.unwrap_err().errno, Errno::ENOSPC);
        let again = process.begin(A, number(0, 1)).await;
        assert!(matches!(again, Ok(DrcLookup::Cached(Err(error))) if error.errno == Errno::ENOSPC));
    });
    on(&mut world, host, async |process| {
        let again = process.begin(A, number(0, 1)).await;
        assert!(matches!(again, Ok(DrcLookup::Cached(Err(error))) if error.errno == Errno::ENOSPC));
    });
}

/// Begins a change in a process that dies before its end: it may be on disk.
fn die_in_between(world: &mut World, host: HostId) {
    on(world, host, async |process| {
        let Ok(DrcLookup::Execute(doing)) = process.begin(A, number(3, 7)).await else { panic!("it is new") };
        std::mem::forget(doing);
    });
}

#[test]
fn a_file_is_closed_until_a_begun_change_is_repeated() {
    let (mut world, host) = machine();
    die_in_between(&mut world, host);
    on(&mut world, host, async |process| {
        assert!(process.once.has_closed_files());
        let (began_ns, other) = (rt::monotonic_ns(), process.clone());
        let waited = Rc::new(std::cell::Cell::new(false));
        let told = waited.clone();
        rt::spawn(async move {
            other.wait_for(B, None).await.unwrap();
            told.set(true);
        });
        rt::sleep(RETRANSMISSION_LIMIT / 2).await;
        assert!(!waited.get());
        process.wait_for(A, Some(number(3, 7))).await.unwrap();
        process.change(A, number(3, 7)).await;
        rt::sleep(RECHECK_INTERVAL).await;
        assert!(waited.get() && !process.once.has_closed_files());
        assert!(rt::monotonic_ns() - began_ns < RETRANSMISSION_LIMIT.as_nanos() as u64);
    });
}

#[test]
fn a_late_retransmission_is_not_executed() {
    let (mut world, host) = machine();
    die_in_between(&mut world, host);
    on(&mut world, host, async |process| {
        process.wait_for(B, None).await.unwrap();
        assert!(!process.once.has_closed_files());
        process.change(B, number(0, 1)).await;
        let late = process.begin(A, number(3, 7)).await.err().expect("others went on");
        assert_eq!(late.errno, Errno::EIO);
    });
    // The next process doesn't accept it either, and the slot continues.
    on(&mut world, host, async |process| {
        assert!(!process.once.has_closed_files());
        assert_eq!(process.begin(A, number(3, 7)).await.err().expect("others went on").errno, Errno::EIO);
        process.change(A, number(3, 8)).await;
    });
}

#[test]
fn a_file_opens_when_the_session_has_ended() {
    let (mut world, host) = machine();
    die_in_between(&mut world, host);
    on(&mut world, host, async |process| {
        assert!(process.once.has_closed_files());
        process.once.drop_session(A);
        assert!(!process.once.has_closed_files());
        process.wait_for(B, None).await.unwrap();
    });
}

/// A sync also syncs the rows, so no later repetition undoes synced content.
#[test]
fn rows_survive_a_power_failure_like_synced_data() {
    let (mut world, host) = machine();
    let lived = world.run(host, async {
        let process = Process::start().await;
        process.change(A, number(0, 1)).await;
        process.store.sync(INO).await.unwrap();
    });
    lived.expect("nothing waits for ever");
    world.crash(host);
    on(&mut world, host, async |process| {
        assert!(matches!(process.begin(A, number(0, 1)).await, Ok(DrcLookup::Cached(Ok(())))));
    });
}

#[test]
fn a_row_is_frozen() {
    let row =
        encoded((SessionId(0x0102), 3), 4, ChunkFileId(0x0506), &Stage::Done(Err(Errno::Number(28).into())));
    let mut expected = [0; ROW_BYTES];
    for (at, byte) in [(0, 2), (1, 1), (8, 3), (12, 4), (16, 6), (17, 5), (24, DONE as u8), (28, 28)] {
        expected[at] = byte;
    }
    assert_eq!(row, expected);
}

#[test]
fn a_change_whose_row_fails_has_not_begun() {
    let (mut world, host) = machine();
    let process = Rc::new(world.run(host, Process::start()).unwrap());
    world.set_capacity(host, Some(0));
    let full = process.clone();
    let refused = world.run(host, async move {
        let begun = full.begin(A, number(0, 1)).await;
        matches!(begun, Ok(DrcLookup::RowFailed(_)))
    });
    assert!(refused.unwrap(), "there is no room for its row");
    world.set_capacity(host, None);
    world.run(host, async move { process.change(A, number(0, 1)).await }).unwrap();
}

/// A replica that is resynced adopts the primary's outcome, also where a change was abandoned or
/// failed here when this replica was already out of sync.
#[test]
fn a_resynced_replica_adopts_the_outcomes_of_the_primary() {
    let (mut world, host) = machine();
    on(&mut world, host, async |process| {
        let Ok(DrcLookup::Execute(given_up)) = process.begin(A, number(0, 1)).await else {
            panic!("it is the first")
        };
        process.once.clear();
        drop(given_up);
        assert_eq!(process.begin(A, number(0, 1)).await.err().map(|error| error.errno), Some(Errno::EIO));
        let Ok(DrcLookup::Execute(failed)) = process.begin(B, number(0, 1)).await else {
            panic!("it is the first")
        };
        failed.end(Err(Error::new(Errno::EIO, "the disk"))).await.unwrap_err();
        for session in [A, B] {
            process.once.adopt_completed(process.store.drc_rows(), session, number(0, 1), INO).await.unwrap();
            assert!(matches!(process.begin(session, number(0, 1)).await, Ok(DrcLookup::Cached(Ok(())))));
        }
    });
    on(&mut world, host, async |process| {
        for session in [A, B] {
            assert!(matches!(process.begin(session, number(0, 1)).await, Ok(DrcLookup::Cached(Ok(())))));
        }
    });
}

#[test]
fn a_change_that_another_primary_decides_leaves_no_record() {
    let (mut world, host) = machine();
    on(&mut world, host, async |process| {
        let Ok(DrcLookup::Execute(doing)) = process.begin(A, number(0, 1)).await else {
            panic!("it is the first")
        };
        process.once.clear();
        doing.discard();
        process.change(A, number(0, 1)).await;
        assert!(matches!(process.begin(A, number(0, 1)).await, Ok(DrcLookup::Cached(Ok(())))));
    });
    on(&mut world, host, async |process| {
        assert!(!process.once.has_closed_files());
        // Adopting a change for which a file is closed opens the file.
        let Ok(DrcLookup::Execute(begun)) = process.begin(B, number(0, 1)).await else {
            panic!("it is the first")
        };
        std::mem::forget(begun);
    });
    on(&mut world, host, async |process| {
        assert!(process.once.has_closed_files());
        let Ok(DrcLookup::Execute(doing)) = process.begin(B, number(0, 1)).await else {
            panic!("it is repeated")
        };
        doing.discard();
        assert!(!process.once.has_closed_files());
    });
}
