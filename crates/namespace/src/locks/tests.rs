use super::*;
use LockFamily::{Flock, Posix};
use LockKind::{Exclusive, Shared};
use OnConflict::{Refuse, Wait};

const INO: InodeId = InodeId(7);

/// Holder `number`; two in each session.
fn holder(family: LockFamily, number: u64) -> Holder {
    Holder { session: SessionId(number / 2), family, owner: LockOwner(number) }
}

fn range(start: u64, last: u64) -> LockRange {
    LockRange { start, last }
}

fn posix(number: u64, kind: LockKind, start: u64, last: u64) -> LockRequest {
    LockRequest {
        ino: INO,
        holder: holder(Posix, number),
        pid: 100 + number as u32,
        kind,
        range: range(start, last),
    }
}

fn flock(number: u64, kind: LockKind) -> LockRequest {
    LockRequest { holder: holder(Flock, number), ..posix(number, kind, 0, 0) }
}

fn grant(table: &mut LockTable, request: LockRequest) {
    assert_eq!(table.lock(&request, Refuse), LockResult { outcome: LockOutcome::Granted, granted: vec![] });
}

fn wait(table: &mut LockTable, request: LockRequest) -> WaitId {
    match table.lock(&request, Wait) {
        LockResult { outcome: LockOutcome::Waiting(wait), granted } if granted.is_empty() => wait,
        other => panic!("{request:?} should wait: {other:?}"),
    }
}

fn outcome(table: &mut LockTable, request: LockRequest, on_conflict: OnConflict) -> LockOutcome {
    table.lock(&request, on_conflict).outcome
}

/// The locks of a holder on `INO`, by offset.
fn held(table: &LockTable, holder: Holder) -> Vec<(LockKind, u64, u64)> {
    let locks = table.inodes.get(&INO).into_iter().flat_map(|locks| &locks.held);
    locks.filter(|l| l.holder == holder).map(|l| (l.kind, l.range.start, l.range.last)).collect()
}

#[test]
fn a_lock_splits_and_merges_within_its_owner() {
    let mut table = LockTable::new();
    let owner = holder(Posix, 0);
    grant(&mut table, posix(0, Shared, 10, 29));
    grant(&mut table, posix(0, Exclusive, 15, 19));
    assert_eq!(held(&table, owner), [(Shared, 10, 14), (Exclusive, 15, 19), (Shared, 20, 29)]);
    grant(&mut table, posix(0, Shared, 30, 39));
    assert_eq!(held(&table, owner), [(Shared, 10, 14), (Exclusive, 15, 19), (Shared, 20, 39)]);
    grant(&mut table, posix(0, Shared, 15, 19));
    assert_eq!(held(&table, owner), [(Shared, 10, 39)]);
    table.unlock(INO, owner, range(20, u64::MAX)).unwrap();
    table.unlock(INO, owner, range(0, 10)).unwrap();
    assert_eq!(held(&table, owner), [(Shared, 11, 19)]);
    table.unlock(INO, owner, range(15, 15)).unwrap();
    assert_eq!(held(&table, owner), [(Shared, 11, 14), (Shared, 16, 19)]);
}

#[test]
fn ranges_reach_both_ends_of_the_file() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Exclusive, u64::MAX, u64::MAX));
    grant(&mut table, posix(0, Exclusive, 0, u64::MAX - 1));
    assert_eq!(held(&table, holder(Posix, 0)), [(Exclusive, 0, u64::MAX)]);
    assert_eq!(outcome(&mut table, posix(1, Shared, u64::MAX, u64::MAX), Refuse), LockOutcome::WouldBlock);
    assert_eq!(outcome(&mut table, posix(1, Shared, 5, 4), Refuse), LockOutcome::Refused(Errno::EINVAL));
    assert_eq!(table.unlock(INO, holder(Posix, 0), range(5, 4)), Err(Errno::EINVAL));
}

#[test]
fn only_an_exclusive_lock_conflicts_and_only_within_its_space() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Shared, 0, 9));
    grant(&mut table, posix(1, Shared, 0, 9));
    assert_eq!(outcome(&mut table, posix(1, Exclusive, 9, 12), Refuse), LockOutcome::WouldBlock);
    assert_eq!(held(&table, holder(Posix, 1)), [(Shared, 0, 9)]);
    grant(&mut table, posix(1, Exclusive, 10, 12));
    grant(&mut table, flock(2, Exclusive));
    grant(&mut table, LockRequest { ino: InodeId(8), ..posix(2, Exclusive, 0, 9) });
}

#[test]
fn test_reports_the_first_lock_in_the_way() {
    let mut table = LockTable::new();
    grant(&mut table, posix(1, Exclusive, 50, 59));
    grant(&mut table, posix(2, Shared, 20, 29));
    assert_eq!(table.test(&posix(0, Exclusive, 0, u64::MAX)), Some((Shared, range(20, 29), 102)));
    assert_eq!(table.test(&posix(0, Shared, 0, u64::MAX)), Some((Exclusive, range(50, 59), 101)));
    assert_eq!(table.test(&posix(0, Shared, 0, 49)), None);
    assert_eq!(table.test(&posix(1, Exclusive, 50, 70)), None);
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Exclusive, 0, 9));
    let second = wait(&mut table, posix(2, Exclusive, 0, 4));
    let third = wait(&mut table, posix(3, Exclusive, 4, 4));
    let fourth = wait(&mut table, posix(4, Shared, 9, 9));
    assert_eq!(table.unlock(INO, holder(Posix, 0), range(0, 99)), Ok(vec![second, fourth]));
    assert_eq!(table.release_owner(INO, holder(Posix, 2)), [third]);
}

#[test]
fn a_downgrade_lets_readers_in() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Exclusive, 0, 9));
    let reader = wait(&mut table, posix(1, Shared, 0, 9));
    let writer = wait(&mut table, posix(2, Exclusive, 0, 9));
    let outcome = table.lock(&posix(0, Shared, 0, 9), Refuse);
    assert_eq!(outcome, LockResult { outcome: LockOutcome::Granted, granted: vec![reader] });
    assert_eq!(table.release_owner(INO, holder(Posix, 0)), []);
    assert_eq!(table.release_owner(INO, holder(Posix, 1)), [writer]);
}

#[test]
fn a_grant_that_downgrades_lets_earlier_waiters_in() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Exclusive, 0, 4));
    grant(&mut table, posix(2, Exclusive, 5, 9));
    let earlier = wait(&mut table, posix(4, Shared, 0, 0));
    let downgrade = wait(&mut table, posix(0, Shared, 0, 9));
    assert_eq!(table.release_owner(INO, holder(Posix, 2)), [downgrade, earlier]);
}

#[test]
fn a_cancelled_wait_is_gone() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Exclusive, 0, 9));
    let first = wait(&mut table, posix(1, Exclusive, 0, 9));
    let second = wait(&mut table, posix(2, Exclusive, 0, 9));
    assert!(table.cancel(first));
    assert!(!table.cancel(first));
    assert_eq!(table.release_owner(INO, holder(Posix, 0)), [second]);
    assert!(!table.cancel(second), "a granted wait can't be cancelled");
}

#[test]
fn a_cycle_of_waits_is_refused_across_inodes() {
    let on = |ino, request| LockRequest { ino: InodeId(ino), ..request };
    let mut table = LockTable::new();
    for number in 0..3 {
        grant(&mut table, on(number, posix(number, Exclusive, 0, 9)));
    }
    wait(&mut table, on(1, posix(0, Exclusive, 0, 9)));
    wait(&mut table, on(2, posix(1, Shared, 3, 3)));
    let closing = on(0, posix(2, Shared, 9, 9));
    assert_eq!(outcome(&mut table, closing, Refuse), LockOutcome::WouldBlock);
    assert_eq!(outcome(&mut table, closing, Wait), LockOutcome::Deadlock);
    assert_eq!(table.waits.len(), 2, "a refused wait leaves nothing behind");
    assert_eq!(outcome(&mut table, on(0, posix(5, Shared, 9, 9)), Wait), LockOutcome::Waiting(WaitId(3)));
}

#[test]
fn two_readers_that_both_upgrade_deadlock_with_fcntl() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Shared, 0, 9));
    grant(&mut table, posix(1, Shared, 0, 9));
    wait(&mut table, posix(0, Exclusive, 0, 9));
    assert_eq!(outcome(&mut table, posix(1, Exclusive, 0, 9), Wait), LockOutcome::Deadlock);
    assert_eq!(held(&table, holder(Posix, 1)), [(Shared, 0, 9)]);
}

#[test]
fn two_readers_that_both_upgrade_take_turns_with_flock() {
    let mut table = LockTable::new();
    grant(&mut table, flock(0, Shared));
    grant(&mut table, flock(1, Shared));
    let first = wait(&mut table, flock(0, Exclusive));
    assert_eq!(held(&table, holder(Flock, 0)), [], "the shared lock is given up");
    assert_eq!(table.lock(&flock(1, Exclusive), Refuse).outcome, LockOutcome::Granted);
    assert_eq!(table.release_owner(INO, holder(Flock, 1)), [first]);
}

#[test]
fn a_refused_flock_conversion_has_lost_the_lock() {
    let mut table = LockTable::new();
    grant(&mut table, flock(0, Exclusive));
    let reader = wait(&mut table, flock(1, Shared));
    let writer = wait(&mut table, flock(2, Exclusive));
    let outcome = table.lock(&flock(0, Shared), Refuse);
    assert_eq!(outcome, LockResult { outcome: LockOutcome::Granted, granted: vec![reader] });
    let outcome = table.lock(&flock(1, Exclusive), Refuse);
    assert_eq!(outcome, LockResult { outcome: LockOutcome::WouldBlock, granted: vec![] });
    assert_eq!(held(&table, holder(Flock, 1)), []);
    assert_eq!(table.release_owner(INO, holder(Flock, 0)), [writer]);
}

#[test]
fn a_flock_covers_the_file_whatever_its_range() {
    let mut table = LockTable::new();
    grant(&mut table, LockRequest { range: range(9, 3), ..flock(0, Shared) });
    grant(&mut table, LockRequest { range: range(5, 5), ..flock(0, Shared) });
    assert_eq!(held(&table, holder(Flock, 0)), [(Shared, 0, u64::MAX)]);
    table.unlock(INO, holder(Flock, 0), range(5, 5)).unwrap();
    assert_eq!(held(&table, holder(Flock, 0)), []);
}

#[test]
fn the_end_of_a_session_ends_its_waits_and_grants_others() {
    let mut table = LockTable::new();
    grant(&mut table, posix(0, Exclusive, 0, 9));
    grant(&mut table, posix(2, Exclusive, 20, 29));
    let own = wait(&mut table, posix(1, Shared, 25, 25));
    let other = wait(&mut table, posix(3, Shared, 0, 0));
    let released = table.release_session(SessionId(0));
    assert_eq!(released, Released { granted: vec![other], cancelled: vec![own] });
    assert_eq!(table.release_session(SessionId(0)), Released::default());
    table.release_session(SessionId(1));
    assert!(table.inodes.is_empty() && table.waits.is_empty() && table.waits_by_holder.is_empty());
    assert_eq!(table.held_total, 0);
}

/// Gives holder 0 `count` locks on bytes `10 i .. 10 i + 2`, past the limits.
fn fill(table: &mut LockTable, ino: InodeId, count: usize) {
    let lock = |i: usize| LockEntry {
        holder: holder(Posix, 0),
        pid: 100,
        kind: Shared,
        range: range(10 * i as u64, 10 * i as u64 + 2),
    };
    table.inodes.entry(ino).or_default().held = (0..count).map(lock).collect();
    table.held_total += count;
}

#[test]
fn an_inode_has_a_limit_that_unlocking_respects_too() {
    let mut table = LockTable::new();
    let owner = holder(Posix, 0);
    fill(&mut table, INO, MAX_LOCKS_PER_INODE - GROWTH);
    let waiting = wait(&mut table, posix(1, Exclusive, 0, 0));
    assert_eq!(outcome(&mut table, posix(2, Exclusive, 5, 5), Wait), LockOutcome::Refused(Errno::ENOLCK));
    assert_eq!(table.unlock(INO, owner, range(11, 11)), Err(Errno::ENOLCK));
    grant(&mut table, LockRequest { ino: InodeId(8), ..posix(0, Shared, 0, 0) });
    assert_eq!(table.unlock(INO, owner, range(20, 22)), Ok(vec![]));
    assert_eq!(table.unlock(INO, owner, range(11, 11)), Ok(vec![]));
    assert_eq!(table.unlock(INO, owner, range(31, 31)), Err(Errno::ENOLCK));
    assert_eq!(table.release_owner(INO, owner), [waiting]);
    grant(&mut table, posix(2, Exclusive, 5, 5));
}

#[test]
fn a_table_has_a_limit() {
    let mut table = LockTable::new();
    let per_inode = MAX_LOCKS_PER_INODE / 2;
    for number in 0..MAX_LOCKS / per_inode {
        fill(&mut table, InodeId(100 + number as u64), per_inode);
    }
    assert_eq!(outcome(&mut table, posix(1, Shared, 0, 0), Refuse), LockOutcome::Refused(Errno::ENOLCK));
    assert_eq!(table.unlock(InodeId(100), holder(Posix, 0), range(1, 1)), Err(Errno::ENOLCK));
    assert_eq!(table.release_owner(InodeId(100), holder(Posix, 0)), []);
    grant(&mut table, posix(1, Shared, 0, 0));
}

mod model;
