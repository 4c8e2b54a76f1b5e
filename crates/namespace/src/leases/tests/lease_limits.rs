//! Behaviour with many leases.

use super::*;

const LIMITS: Limits = Limits { total: 256, per_session: 64 };

/// A table, and the pending recalls.
struct Crowd {
    table: LeaseTable,
    sent: Vec<(u64, LeaseKey)>,
    unacknowledged: VecDeque<(u64, LeaseKey, u64)>,
}

impl Crowd {
    fn new() -> Crowd {
        Crowd { table: LeaseTable::new(LIMITS), sent: Vec::new(), unacknowledged: VecDeque::new() }
    }

    /// As the service does with each requested lease.
    fn make_room(&mut self, session: u64) {
        let Crowd { table, sent, unacknowledged: unanswered } = self;
        let before = sent.len();
        let mut send = |session: SessionId, key, keep| {
            assert_eq!(keep, None);
            sent.push((session.0, key));
            unanswered.push_back((session.0, key, sent.len() as u64));
            sent.len() as u64
        };
        table.make_room(SessionId(session), &mut send);
        assert!(self.sent.len() - before <= 2, "one lease recalls too many");
        assert!(self.table.total <= LIMITS.total);
        assert!(self.table.by_session.values().all(|own| own.holders <= LIMITS.per_session));
    }

    fn requester(&self, session: u64) -> Requester {
        requester(session, self.sent.len() as u64, 0)
    }

    fn offer(&mut self, session: u64, ino: u64) -> Option<LeaseMode> {
        let requester = self.requester(session);
        let offered = self.table.offer(requester, InodeId(ino));
        self.make_room(session);
        offered
    }

    fn acquire(&mut self, session: u64, ino: u64, mode: LeaseMode) -> Option<LeaseMode> {
        let requester = self.requester(session);
        let mut no_recall = |_, _, _| unreachable!("nothing is in the way");
        let mut due = Vec::new();
        let granted =
            self.table.acquire(requester, InodeId(ino), LeaseRequest::Mode(mode), &mut no_recall, &mut due);
        assert!(due.is_empty(), "nobody is waited for");
        self.make_room(session);
        granted
    }

    fn acknowledge_all(&mut self) {
        while let Some((session, key, number)) = self.unacknowledged.pop_front() {
            let answer = Acknowledgement { number, key, in_use: false };
            self.table.acknowledge(SessionId(session), answer, 0);
        }
    }

    fn has(&self, session: u64, ino: u64) -> bool {
        let holder =
            self.table.entries.get(&InodeId(ino).into()).and_then(|entry| entry.find(SessionId(session)));
        holder.is_some_and(|holder| holder.mode.is_some() && holder.recall.is_none())
    }
}

#[test]
fn a_session_that_walks_a_huge_tree_keeps_caching() {
    let mut crowd = Crowd::new();
    for ino in 1..=5000 {
        assert_eq!(crowd.offer(1, ino), Some(Read), "of inode {ino}");
        crowd.acknowledge_all();
    }
    let oldest_first: Vec<LeaseKey> = (1..=crowd.sent.len() as u64).map(|ino| InodeId(ino).into()).collect();
    assert_eq!(crowd.sent.iter().map(|(_, key)| *key).collect::<Vec<_>>(), oldest_first);
    assert!((5000 - 40..=5000).all(|ino| crowd.has(1, ino)), "what was looked at last");
    assert_eq!(crowd.table.len(), crowd.table.total, "what has left cools down for nobody");
}

#[test]
fn an_unresponsive_session_gets_no_offers_but_opens_files() {
    let mut crowd = Crowd::new();
    let offered = (1..=1000).filter(|&ino| crowd.offer(1, ino).is_some()).count();
    assert_eq!(offered, 56);
    assert!(crowd.sent.len() <= 56);
    let requester = crowd.requester(1);
    assert!(crowd.table.mark_in_use(requester, InodeId(2000)));
    assert_eq!(crowd.acquire(1, 2001, Write), Some(Write));
    crowd.acknowledge_all();
    assert_eq!(crowd.offer(1, 1001), Some(Read));
}

#[test]
fn what_is_asked_for_again_or_written_stays_longer() {
    let mut crowd = Crowd::new();
    assert_eq!(crowd.acquire(1, 1, Write), Some(Write));
    assert_eq!(crowd.offer(1, 2), Some(Read));
    assert_eq!(crowd.offer(1, 3), Some(Read));
    for ino in 4..=60 {
        assert_eq!(crowd.offer(1, 3), Some(Read));
        assert_eq!(crowd.offer(1, ino), Some(Read));
        crowd.acknowledge_all();
    }
    assert_eq!(crowd.sent[..2], [(1, InodeId(2).into()), (1, InodeId(4).into())]);
    for ino in 61..=1000 {
        assert_eq!(crowd.offer(1, 3), Some(Read));
        assert_eq!(crowd.offer(1, ino), Some(Read));
        crowd.acknowledge_all();
    }
    assert!(!crowd.has(1, 1), "a file that was written long ago leaves, too");
    assert!(crowd.has(1, 3), "what is always in use never leaves");
}

#[test]
fn a_file_that_is_open_keeps_its_mark() {
    let mut crowd = Crowd::new();
    assert_eq!(crowd.acquire(1, 1, Read), Some(Read));
    for ino in 2..=500 {
        assert_eq!(crowd.offer(1, ino), Some(Read));
        while let Some((session, key, number)) = crowd.unacknowledged.pop_front() {
            let in_use = key == InodeId(1).into();
            crowd.table.acknowledge(SessionId(session), Acknowledgement { number, key, in_use }, 0);
        }
    }
    assert_eq!(crowd.sent.iter().filter(|(_, key)| *key == InodeId(1).into()).count(), 1);
    assert!(!crowd.table.reclaim(SessionId(2), InodeId(1)), "it is in use");
}

#[test]
fn sessions_above_their_share_are_recalled() {
    let mut crowd = Crowd::new();
    for ino in 1..=10 {
        assert_eq!(crowd.offer(9, ino), Some(Read));
    }
    // Seven sessions below the limit of one exceed the limit of all together.
    for ino in 0..40 {
        for session in 1..=7 {
            assert_eq!(crowd.offer(session, 1000 * session + ino), Some(Read), "{session}: {ino}");
            crowd.acknowledge_all();
        }
    }
    assert!(crowd.sent.len() >= 7 * 40 + 10 - 192);
    assert!((1..=10).all(|ino| crowd.has(9, ino)), "a small working set outlasts the others");
    // A session with few leases makes sessions with many give up some.
    let before = crowd.sent.len();
    for ino in 100..110 {
        assert_eq!(crowd.offer(8, ino), Some(Read));
        crowd.acknowledge_all();
    }
    assert!(crowd.sent[before..].iter().all(|(session, _)| (1..=7).contains(session)));
    assert!(crowd.sent.len() > before);
}

#[test]
fn a_recall_for_room_blocks_only_conflicting_commands() {
    let mut crowd = Crowd::new();
    (1..=50).for_each(|ino| _ = crowd.offer(1, ino));
    let (_, key, number) = crowd.unacknowledged[0];
    let ino = key.inode().unwrap();
    assert_eq!(crowd.offer(2, ino.0), Some(Read), "nobody waits for that recall");
    assert_eq!(crowd.acquire(3, ino.0, Read), Some(Read));
    assert_eq!(crowd.offer(1, ino.0), None, "it is to give it up");
    // A change waits for the same acknowledgement, and nothing is granted meanwhile.
    let (mut due, changer) = (Vec::new(), crowd.requester(4));
    let mut sent = Vec::new();
    let mut send = |session: SessionId, _, _| {
        sent.push(session.0);
        1_000_000
    };
    crowd.table.recall_conflicting(changer, key, InodeAccess::Write, &mut send, &mut due);
    assert_eq!((due[0], sent), (PendingRecall { key, session: SessionId(1), number }, vec![2, 3]));
    let requester = crowd.requester(5);
    assert_eq!(crowd.table.offer(requester, ino), None);
    for (session, number) in [(1, number), (2, 1_000_000), (3, 1_000_000)] {
        crowd.table.acknowledge(SessionId(session), Acknowledgement { number, key, in_use: false }, 0);
    }
    assert!(due.iter().all(|due| !crowd.table.is_pending(due)));
    assert_eq!(crowd.offer(5, ino.0), None, "it cools down as after any other recall");
}

#[test]
fn what_is_let_go_and_taken_again_leaves_no_trace() {
    let mut crowd = Crowd::new();
    for round in 0..10_000 {
        assert_eq!(crowd.offer(1, 1 + round % 7), Some(Read));
        crowd.table.release(SessionId(1), InodeId(1 + round % 7).into(), u64::MAX);
        assert_eq!(crowd.offer(1, 100), Some(Read));
    }
    assert!(crowd.sent.is_empty());
    assert!(crowd.table.by_session[&SessionId(1)].noted() <= 100, "the list of ages grows and grows");
}
