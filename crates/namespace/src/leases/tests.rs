use super::*;
use LeaseMode::{Permissions, Read, Shared, Write};

mod lease_limits;
mod model;

const INO: InodeId = InodeId(7);
const INO_KEY: LeaseKey = LeaseKey::Inode(INO);
const LIMITS: Limits = Limits { total: 100, per_session: 50 };

fn requester(session: u64, recalls: u64, now_ns: u64) -> Requester {
    Requester { session: SessionId(session), last_recall: recalls, now_ns, acknowledges: true }
}

/// A table, and the recalls that it sent.
struct Fixture {
    table: LeaseTable,
    sent: Vec<(u64, Option<LeaseMode>)>,
    due: Vec<PendingRecall>,
    now_ns: u64,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { table: LeaseTable::new(LIMITS), sent: vec![], due: vec![], now_ns: 0 }
    }

    fn requester(&self, session: u64) -> Requester {
        requester(session, self.sent.len() as u64, self.now_ns)
    }

    fn acquire(&mut self, session: u64, wish: LeaseMode) -> Option<LeaseMode> {
        let requester = self.requester(session);
        let sent = &mut self.sent;
        let mut send = |session: SessionId, key, keep| {
            assert_eq!(key, INO_KEY);
            sent.push((session.0, keep));
            sent.len() as u64
        };
        self.due.clear();
        self.table.acquire(requester, INO, LeaseRequest::Mode(wish), &mut send, &mut self.due)
    }

    fn recall_conflicting(&mut self, session: u64, access: InodeAccess) {
        let requester = self.requester(session);
        let sent = &mut self.sent;
        let mut send = |session: SessionId, _, keep| {
            sent.push((session.0, keep));
            sent.len() as u64
        };
        self.due.clear();
        self.table.recall_conflicting(requester, INO_KEY, access, &mut send, &mut self.due);
    }

    fn recall_name_conflicts(&mut self, session: u64) {
        let requester = self.requester(session);
        let sent = &mut self.sent;
        let mut send = |session: SessionId, _, keep| {
            sent.push((session.0, keep));
            sent.len() as u64
        };
        self.due.clear();
        self.table.recall_name_conflicts(requester, INO, &mut send, &mut self.due);
    }

    fn acknowledge(&mut self, session: u64, number: usize, in_use: bool) {
        let answer = Acknowledgement { number: number as u64, key: INO_KEY, in_use };
        self.table.acknowledge(SessionId(session), answer, self.now_ns);
    }

    fn mode(&self, session: u64) -> Option<LeaseMode> {
        self.table.entries.get(&INO_KEY)?.find(SessionId(session))?.mode
    }
}

#[test]
fn readers_and_writers_share_among_themselves() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.acquire(1, Read), Some(Read));
    assert_eq!(fixture.acquire(2, Read), Some(Read));
    assert_eq!(fixture.acquire(3, Shared), None);
    assert_eq!(fixture.sent, [(1, None), (2, None)]);
    fixture.acknowledge(1, 1, false);
    fixture.acknowledge(2, 2, false);
    assert_eq!(fixture.acquire(3, Shared), Some(Shared));
    assert_eq!(fixture.acquire(4, Shared), Some(Shared));
    assert_eq!(fixture.acquire(5, Write), Some(Shared));
    // Reading beside writers is as bad for them as a request for the exclusive lease.
    assert_eq!(fixture.acquire(4, Read), Some(Shared));
    assert_eq!(fixture.sent.len(), 2);
    // A repeated request shows that the session needs the mode.
    fixture.table.release(SessionId(3), INO_KEY, 9);
    assert_eq!(fixture.acquire(4, Write), None);
    assert_eq!(fixture.sent[2..], [(5, None)]);
    fixture.acknowledge(5, 3, true);
    assert_eq!(fixture.acquire(4, Write), Some(Write));
}

#[test]
fn a_recall_takes_no_more_than_needed() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.acquire(1, Write), Some(Write));
    assert_eq!(fixture.acquire(2, Read), None);
    assert_eq!(fixture.sent, [(1, Some(Read))]);
    fixture.acknowledge(1, 1, true);
    assert_eq!(fixture.acquire(2, Read), Some(Read));
    assert_eq!(fixture.mode(1), Some(Read));
    assert_eq!(fixture.acquire(1, Write), None);
    fixture.acknowledge(2, 2, true);
    assert_eq!(fixture.acquire(1, Write), Some(Write));
    fixture.recall_conflicting(2, InodeAccess::Read);
    assert_eq!(fixture.sent[2], (1, Some(Shared)));
    fixture.acknowledge(1, 3, true);
    fixture.recall_conflicting(2, InodeAccess::Read);
    fixture.recall_conflicting(2, InodeAccess::SharedWrite);
    assert!(fixture.due.is_empty());
    fixture.recall_conflicting(2, InodeAccess::Write);
    assert_eq!(fixture.sent[3], (1, None));
}

#[test]
fn a_recall_that_asks_for_more_replaces_an_unanswered_one() {
    let mut fixture = Fixture::new();
    fixture.acquire(1, Write);
    fixture.recall_conflicting(2, InodeAccess::Read);
    let first = fixture.due[0];
    // A repeated request waits for the same acknowledgement.
    fixture.recall_conflicting(3, InodeAccess::Read);
    assert_eq!((fixture.due.as_slice(), fixture.sent.len()), ([first].as_slice(), 1));
    fixture.recall_conflicting(3, InodeAccess::Write);
    assert_eq!(fixture.sent[1], (1, None));
    assert!(!fixture.table.is_pending(&first), "those that waited for it try again");
    fixture.acknowledge(1, 1, false);
    assert_eq!(fixture.mode(1), Some(Write), "the old one doesn't answer the new one");
    fixture.acknowledge(1, 2, false);
    assert_eq!(fixture.mode(1), None);
}

#[test]
fn nothing_conflicting_is_granted_during_a_recall() {
    let mut fixture = Fixture::new();
    fixture.acquire(1, Read);
    fixture.recall_conflicting(2, InodeAccess::Write);
    assert_eq!(fixture.acquire(3, Read), None);
    assert_eq!(fixture.due.len(), 1, "it waits with the one who changes it");
    assert_eq!(fixture.acquire(1, Read), None);
    assert!(fixture.due.is_empty(), "who is to give it up is not made to wait for itself");
    let requester = fixture.requester(1);
    assert_eq!(fixture.table.offer(requester, INO), None);
    let requester = fixture.requester(4);
    assert_eq!(fixture.table.offer(requester, INO), None);
}

#[test]
fn a_recalled_inode_cools_down() {
    let mut fixture = Fixture::new();
    fixture.acquire(1, Read);
    fixture.recall_conflicting(2, InodeAccess::Write);
    fixture.now_ns = 5;
    fixture.acknowledge(1, 1, false);
    let requester_at = |now_ns| requester(2, 0, now_ns);
    assert_eq!(fixture.table.offer(requester_at(COOL_DOWN_NS + 4), INO), None);
    assert_eq!(fixture.table.offer(requester_at(COOL_DOWN_NS + 5), INO), Some(Read));
    // A lease that is requested is granted at once.
    fixture.recall_conflicting(1, InodeAccess::Write);
    fixture.acknowledge(2, 2, false);
    assert_eq!(fixture.acquire(1, Read), Some(Read));
}

#[test]
fn sessions_that_add_names_keep_permission_leases() {
    let mut fixture = Fixture::new();
    let offer = |fixture: &mut Fixture, session| {
        let requester = fixture.requester(session);
        fixture.table.offer_directory(requester, INO)
    };
    assert_eq!(offer(&mut fixture, 1), Some(Read));
    fixture.recall_name_conflicts(2);
    assert_eq!(fixture.sent, [(1, Some(Permissions))]);
    fixture.acknowledge(1, 1, false);
    fixture.recall_name_conflicts(2);
    assert_eq!((fixture.due.len(), fixture.mode(1)), (0, Some(Permissions)));
    assert_eq!(offer(&mut fixture, 2), Some(Permissions), "while it cools down");
    for session in [1, 2, 1] {
        fixture.recall_name_conflicts(session);
        assert_eq!(offer(&mut fixture, session), Some(Permissions));
    }
    assert_eq!(fixture.sent.len(), 1, "nobody asks anybody any more");
    fixture.now_ns = COOL_DOWN_NS;
    assert_eq!(offer(&mut fixture, 2), Some(Read));
    assert_eq!(fixture.mode(1), Some(Permissions), "the one beside the other");
    // A change of permissions ends both.
    fixture.recall_conflicting(3, InodeAccess::Write);
    assert_eq!(fixture.sent[1..], [(1, None), (2, None)]);
    assert_eq!(offer(&mut fixture, 4), None);
    fixture.acknowledge(1, 2, false);
    fixture.acknowledge(2, 3, false);
    assert_eq!((fixture.mode(1), fixture.mode(2)), (None, None));
}

#[test]
fn a_change_of_permissions_recalls_permission_leases() {
    let mut fixture = Fixture::new();
    fixture.acquire(1, Read);
    fixture.recall_name_conflicts(2);
    fixture.recall_conflicting(3, InodeAccess::Write);
    assert_eq!(fixture.sent, [(1, Some(Permissions)), (1, None)]);
    // A session that adds names now waits for the same acknowledgement.
    fixture.recall_name_conflicts(2);
    assert_eq!((fixture.sent.len(), fixture.due[0].number), (2, 2));
    fixture.acknowledge(1, 1, false);
    assert_eq!(fixture.mode(1), Some(Read), "that was the answer to the first");
    fixture.acknowledge(1, 2, false);
    assert_eq!(fixture.mode(1), None);
}

#[test]
fn a_limit_grants_nothing_and_keeps_what_is_held() {
    let mut table = LeaseTable::new(Limits { total: 3, per_session: 2 });
    let mut offer = |session, ino| table.offer(requester(session, 0, 0), InodeId(ino));
    assert_eq!([offer(1, 1), offer(1, 2), offer(1, 3)], [Some(Read), Some(Read), None]);
    assert_eq!([offer(2, 1), offer(2, 2), offer(1, 1)], [Some(Read), None, Some(Read)]);
    assert!(!table.mark_in_use(requester(2, 0, 0), InodeId(9)));
    assert!(table.mark_in_use(requester(2, 0, 0), InodeId(1)));
    table.end_session(SessionId(1));
    assert_eq!(table.offer(requester(2, 0, 0), InodeId(2)), Some(Read));
}

#[test]
fn the_last_user_lets_a_file_without_a_name_go() {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.requester(1), fixture.requester(2));
    fixture.table.mark_in_use(first, INO);
    fixture.table.mark_in_use(second, INO);
    assert!(!fixture.table.reclaim(SessionId(3), INO));
    assert!(!fixture.table.reclaim(SessionId(1), INO));
    assert!(fixture.table.take_abandoned().is_empty());
    fixture.table.release(SessionId(2), INO_KEY, 0);
    assert_eq!(fixture.table.take_abandoned(), [INO]);
    assert!(fixture.table.reclaim(SessionId(0), INO));
    assert!(fixture.table.is_empty());
}

#[test]
fn a_file_that_is_opened_while_its_lease_is_recalled_stays_in_use() {
    let mut fixture = Fixture::new();
    fixture.acquire(1, Read);
    fixture.recall_conflicting(2, InodeAccess::Write);
    let opener = fixture.requester(1);
    fixture.table.mark_in_use(opener, INO);
    fixture.acknowledge(1, 1, false);
    assert!(!fixture.table.reclaim(SessionId(2), INO));
}

#[test]
fn a_transferred_lease_conflicts_with_others() {
    let mut fixture = Fixture::new();
    fixture.acquire(1, Write);
    fixture.recall_conflicting(2, InodeAccess::Read);
    let waits_for = fixture.due[0];
    let holder = fixture.requester(9);
    assert!(fixture.table.transfer(SessionId(1), holder, INO));
    assert!(!fixture.table.is_pending(&waits_for), "those that waited for it try again");
    assert_eq!((fixture.mode(1), fixture.mode(9)), (None, Some(Write)));
    fixture.recall_conflicting(2, InodeAccess::Read);
    assert_eq!(fixture.due[0].session, SessionId(9));
    // The same from a session without a lease.
    assert!(fixture.table.transfer(SessionId(3), holder, INO));
    fixture.table.release(SessionId(9), INO_KEY, u64::MAX);
    // Nothing is taken from other sessions.
    assert_eq!(fixture.acquire(2, Read), Some(Read));
    let holder = fixture.requester(9);
    assert!(!fixture.table.transfer(SessionId(1), holder, INO));
    fixture.table.release(SessionId(2), INO_KEY, u64::MAX);
    assert!(fixture.table.transfer(SessionId(1), holder, INO));
    assert_eq!(fixture.mode(9), Some(Write));
}

impl Fixture {
    /// The epoch; a fresh one is the next of a counter.
    fn epoch(&mut self, count: &mut u64) -> u64 {
        self.table.epoch(INO, || {
            *count += 1;
            *count
        })
    }
}

#[test]
fn the_epoch_increases_when_the_right_to_write_passes_on() {
    let (mut fixture, mut count) = (Fixture::new(), 0);
    fixture.acquire(1, Read);
    fixture.acquire(2, Read);
    assert_eq!((fixture.epoch(&mut count), fixture.epoch(&mut count)), (1, 1), "they have it in common");
    fixture.table.release(SessionId(2), INO_KEY, 9);
    assert_eq!(fixture.epoch(&mut count), 1, "no writer has gone");
    assert_eq!(fixture.acquire(1, Write), Some(Write));
    assert_eq!(fixture.epoch(&mut count), 2, "a writer has come");
    assert_eq!(fixture.acquire(1, Write), Some(Write));
    assert_eq!(fixture.epoch(&mut count), 2, "nobody else has been there");
    assert_eq!(fixture.acquire(2, Write), None);
    assert_eq!(fixture.epoch(&mut count), 2, "it hasn't been given up");
    fixture.acknowledge(1, 1, true);
    assert_eq!(fixture.acquire(2, Write), Some(Shared));
    assert_eq!(fixture.epoch(&mut count), 2, "who shares has answers to all that was asked");
    fixture.table.release(SessionId(1), INO_KEY, 9);
    assert_eq!(fixture.epoch(&mut count), 3, "what a release leaves behind nobody says");
    fixture.acquire(1, Write);
    fixture.table.end_session(SessionId(2));
    assert_eq!(fixture.epoch(&mut count), 4, "nor what the end of a session does");
    assert_eq!(fixture.acquire(1, Write), Some(Write));
    fixture.recall_conflicting(2, InodeAccess::Write);
    fixture.acknowledge(1, fixture.sent.len(), false);
    assert_eq!(fixture.epoch(&mut count), 5);
    fixture.table.forget_partition(INO.partition());
    assert_eq!(fixture.epoch(&mut count), 6);
}

#[test]
fn a_tainted_epoch_is_followed_by_another() {
    let (mut fixture, mut count) = (Fixture::new(), 0);
    fixture.acquire(1, Write);
    assert_eq!(fixture.epoch(&mut count), 1);
    fixture.table.end_epoch(INO, 1);
    assert_eq!(fixture.epoch(&mut count), 2);
    // Another writer reports the tainted epoch later.
    fixture.table.end_epoch(INO, 1);
    assert_eq!(fixture.epoch(&mut count), 2);
    fixture.table.end_epoch(INO, u64::MAX);
    assert_eq!(fixture.epoch(&mut count), 3);
}

impl Fixture {
    fn grant_exclusive(&mut self, session: u64) -> Option<LeaseMode> {
        let requester = self.requester(session);
        let sent = &mut self.sent;
        let mut send = |session: SessionId, _, keep| {
            sent.push((session.0, keep));
            sent.len() as u64
        };
        self.due.clear();
        self.table.grant_exclusive(requester, INO_KEY, &mut send, &mut self.due)
    }
}

#[test]
fn a_directory_delegation_recalls_other_leases() {
    for other in [Permissions, Read, Shared, Write] {
        let mut fixture = Fixture::new();
        fixture.acquire(2, other);
        assert_eq!(fixture.grant_exclusive(1), None, "{other:?}");
        assert_eq!((&fixture.sent[..], fixture.due.len()), (&[(2, None)][..], 1));
        assert_eq!((fixture.mode(1), fixture.mode(2)), (None, Some(other)));
        fixture.acknowledge(2, 1, false);
        assert_eq!(fixture.grant_exclusive(1), Some(Write));
    }
    let mut fixture = Fixture::new();
    // An inode in use counts as taken.
    let user = fixture.requester(2);
    fixture.table.mark_in_use(user, INO);
    assert_eq!(fixture.grant_exclusive(1), None);
    fixture.table.release(SessionId(2), INO_KEY, 9);
    // The session's own lease doesn't conflict.
    for own in [Permissions, Read] {
        let mut fixture = Fixture::new();
        fixture.acquire(1, own);
        assert_eq!(fixture.grant_exclusive(1), Some(Write));
        assert_eq!(fixture.grant_exclusive(1), Some(Write), "again");
        let requester = fixture.requester(1);
        assert_eq!(fixture.table.offer_directory(requester, INO), Some(Write), "it goes on to have it");
    }
}

#[test]
fn no_recall_for_a_delegation_during_cool_down() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.grant_exclusive(1), Some(Write));
    fixture.recall_name_conflicts(2);
    assert_eq!(fixture.sent, [(1, None)]);
    assert_eq!(fixture.grant_exclusive(1), None, "it has yet to answer");
    fixture.acknowledge(1, 1, false);
    let requester = fixture.requester(2);
    assert_eq!(fixture.table.offer_directory(requester, INO), Some(Permissions));
    assert_eq!((fixture.grant_exclusive(1), fixture.sent.len()), (None, 1));
    fixture.now_ns = COOL_DOWN_NS;
    assert_eq!((fixture.grant_exclusive(1), fixture.sent.len()), (None, 2));
    fixture.acknowledge(2, 2, false);
    assert_eq!(fixture.grant_exclusive(1), Some(Write));
}

#[test]
fn a_lookup_leaves_permissions_to_the_delegation_holder() {
    let mut fixture = Fixture::new();
    fixture.grant_exclusive(1);
    fixture.recall_conflicting(1, InodeAccess::Read);
    assert_eq!(fixture.due, [], "nobody is in its own way");
    fixture.recall_conflicting(2, InodeAccess::Read);
    fixture.recall_conflicting(3, InodeAccess::Read);
    assert_eq!(fixture.sent, [(1, Some(Permissions))], "one recall for both");
    assert_eq!(fixture.due.len(), 1);
    fixture.acknowledge(1, 1, false);
    assert_eq!(fixture.mode(1), Some(Permissions));
    fixture.recall_conflicting(2, InodeAccess::Read);
    assert_eq!(fixture.due, []);
    // While that recall is pending, a change of names waits for the same acknowledgement, and a
    // change of permissions recalls those, too.
    let mut fixture = Fixture::new();
    fixture.grant_exclusive(1);
    fixture.recall_conflicting(2, InodeAccess::Read);
    fixture.recall_name_conflicts(3);
    assert_eq!((fixture.sent.len(), fixture.due.len()), (1, 1));
    fixture.recall_conflicting(3, InodeAccess::Write);
    assert_eq!(fixture.sent[1..], [(1, None)]);
}

#[test]
fn no_delegation_at_the_offer_threshold() {
    let mut table = LeaseTable::new(Limits { total: 8, per_session: 8 });
    let mut take = |ino| {
        let mut nobody =
            |_: SessionId, _: LeaseKey, _: Option<LeaseMode>| unreachable!("nobody else is there");
        table.grant_exclusive(requester(1, 0, 0), InodeId(ino).into(), &mut nobody, &mut Vec::new())
    };
    let taken: Vec<_> = (1..=8).map(&mut take).collect();
    assert_eq!(taken.iter().filter(|mode| mode.is_some()).count(), 7);
    assert_eq!(take(1), Some(Write));
}
