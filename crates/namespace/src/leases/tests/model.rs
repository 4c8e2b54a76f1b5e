//! Random histories of sessions that acknowledge recalls after some time, compared step by step
//! with a naive table.

use super::*;
use std::collections::BTreeSet;

const SESSIONS: u64 = 4;
/// Keeps its leases until it releases them.
const SILENT: SessionId = SessionId(4);
const INODES: u64 = 3;
/// A name-prefix delegation, with the number of an inode: they are different leases all the same.
const NAMES: u64 = 1;
const STEPS: usize = 600;
const HISTORIES: u64 = 200;

type Key = (LeaseKey, SessionId);

/// The leases of all sessions, as grants and acknowledgements imply them.
#[derive(Default)]
struct Model {
    held: BTreeMap<Key, LeaseMode>,
    /// Use marks, and files that an acknowledgement reported as open.
    in_use: BTreeSet<Key>,
    /// The last pending recall: its number, what it leaves, and whether a command has had to wait
    /// for it.
    recalls: BTreeMap<Key, (u64, Option<LeaseMode>, bool)>,
    granted_at: BTreeMap<Key, u64>,
    numbers: BTreeMap<SessionId, u64>,
    doomed: BTreeSet<LeaseKey>,
    abandoned: Vec<InodeId>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl Model {
    fn others(&self, (ino, session): Key) -> Vec<LeaseMode> {
        let others = self.held.iter().filter(|((i, s), _)| *i == ino && *s != session);
        others.map(|(_, mode)| *mode).collect()
    }

    fn forget(&mut self, key: Key) {
        self.held.remove(&key);
        self.in_use.remove(&key);
        self.recalls.remove(&key);
        self.granted_at.remove(&key);
        self.settle(key.0);
    }

    fn is_used(&self, lease: LeaseKey) -> bool {
        let of_it = |key: &Key| key.0 == lease;
        self.held.keys().any(of_it) || self.in_use.iter().any(of_it)
    }

    fn settle(&mut self, lease: LeaseKey) {
        if !self.is_used(lease) && self.doomed.remove(&lease) {
            self.abandoned.extend(lease.inode());
        }
    }

    fn check(&self, table: &LeaseTable) {
        let mut held = BTreeMap::new();
        let mut in_use = BTreeSet::new();
        let mut recalls = BTreeMap::new();
        let mut leaving = 0;
        for (&lease, entry) in &table.entries {
            for holder in &entry.holders {
                let key = (lease, holder.session);
                assert!(holder.mode.is_some() || holder.in_use, "{key:?} is held for nothing");
                held.extend(holder.mode.map(|mode| (key, mode)));
                in_use.extend(holder.in_use.then_some(key));
                recalls.extend(holder.recall.map(|it| (key, (it.number, it.retain, it.blocks_command))));
                leaving += usize::from(holder.recall.is_some_and(|recall| recall.to_make_room));
            }
            assert!(
                !entry.holders.is_empty() || entry.recalled_ns.is_some(),
                "{lease:?} is kept for nothing"
            );
        }
        assert_eq!((held, in_use, recalls), (self.held.clone(), self.in_use.clone(), self.recalls.clone()));
        for (&key, &mode) in &self.held {
            for other in self.others(key) {
                let read = |mode| matches!(mode, Read | Permissions);
                assert!(
                    read(mode) && read(other) || mode == Shared && other == Shared,
                    "{key:?} has {mode:?} beside {other:?}"
                );
            }
        }
        let all: BTreeSet<Key> = self.held.keys().chain(&self.in_use).copied().collect();
        assert_eq!(table.total, all.len());
        assert_eq!(table.by_session.values().map(|own| own.holders).sum::<usize>(), all.len());
        assert_eq!(table.recalled_for_room, leaving);
        assert_eq!(table.by_session.values().map(|own| own.being_recalled).sum::<usize>(), leaving);
    }
}

struct History {
    table: LeaseTable,
    model: Model,
    random: Random,
    now_ns: u64,
}

impl History {
    fn session(&mut self) -> SessionId {
        SessionId(self.random.below(SESSIONS) + 1)
    }

    fn inode(&mut self) -> (InodeId, SessionId) {
        (InodeId(self.random.below(INODES) + 1), self.session())
    }

    /// An inode or the names.
    fn key(&mut self) -> Key {
        let lease = match self.random.below(INODES + 1) {
            0 => NamePrefixId::new(InodeId(NAMES)).into(),
            number => InodeId(number).into(),
        };
        (lease, self.session())
    }

    fn requester(&self, session: SessionId) -> Requester {
        let recalls = self.model.numbers.get(&session).copied().unwrap_or(0);
        Requester { session, last_recall: recalls, now_ns: self.now_ns, acknowledges: session != SILENT }
    }

    /// Runs a call that may send recalls; checks that they are for other sessions and leave less
    /// each time.
    fn with_send(
        &mut self,
        (lease, session): Key,
        call: impl FnOnce(&mut LeaseTable, Requester, Send<'_>, &mut Vec<PendingRecall>) -> Option<LeaseMode>,
    ) -> Option<LeaseMode> {
        let requester = self.requester(session);
        let mut due = Vec::new();
        let model = &mut self.model;
        let mut send = |other, recalled, keep| {
            assert_eq!(recalled, lease);
            assert_ne!(other, session);
            let number = model.numbers.entry(other).or_default();
            *number += 1;
            let replaced = model.recalls.insert((lease, other), (*number, keep, true));
            if let Some((_, before, _)) = replaced {
                assert!(
                    before.is_some() && keep.is_none_or(|keep| keep == Permissions && before == Some(Read))
                );
            }
            *number
        };
        let granted = call(&mut self.table, requester, &mut send, &mut due);
        assert!(granted.is_none() || due.is_empty());
        for due in due {
            assert!(self.table.is_pending(&due) && due.session != session);
            let recall = self.model.recalls.get_mut(&(lease, due.session)).unwrap();
            assert_eq!(recall.0, due.number);
            recall.2 = true;
        }
        if let Some(mode) = granted {
            self.model.held.insert((lease, session), mode);
            self.model.granted_at.insert((lease, session), requester.last_recall);
        }
        granted
    }

    fn acquire(&mut self) {
        let (ino, session) = self.inode();
        let key = (ino.into(), session);
        let wish = [Read, Shared, Write, Write][self.random.below(4) as usize];
        let is_alone = wish == Write && self.random.below(3) == 0;
        let others_wait = self.model.recalls.keys().any(|other| other.0 == key.0);
        let others = self.model.others(key);
        let granted = self.with_send(key, |table, requester, send, due| {
            let wish = if is_alone { LeaseRequest::Exclusive } else { LeaseRequest::Mode(wish) };
            table.acquire(requester, ino, wish, send, due)
        });
        assert!(!is_alone || granted.is_none_or(|mode| mode == Write));
        if others.is_empty() && !others_wait {
            assert!(granted.is_some_and(|mode| mode == wish || mode == Write), "{granted:?}");
        }
    }

    fn grant_exclusive(&mut self) {
        let key = self.key();
        let alone = self
            .with_send(key, |table, requester, send, due| table.grant_exclusive(requester, key.0, send, due));
        let Some(mode) = alone else { return };
        assert_eq!(mode, Write);
        let others = |other: &Key| other.0 == key.0 && other.1 != key.1;
        assert!(!self.model.held.keys().any(others) && !self.model.in_use.iter().any(others));
        assert!(!self.model.recalls.contains_key(&key) && !self.model.doomed.contains(&key.0));
    }

    fn recall_conflicting(&mut self) {
        let key = self.key();
        let access = match key.0 {
            LeaseKey::Inode(_) => [InodeAccess::Read, InodeAccess::SharedWrite, InodeAccess::Write]
                [self.random.below(3) as usize],
            LeaseKey::NamePrefix(_) => InodeAccess::Write,
        };
        let mut waits = false;
        self.with_send(key, |table, requester, send, due| {
            table.recall_conflicting(requester, key.0, access, send, due);
            waits = !due.is_empty();
            None
        });
        let in_the_way = |mode: &LeaseMode| match access {
            InodeAccess::Read => *mode == Write,
            InodeAccess::SharedWrite => *mode != Shared,
            InodeAccess::Write => true,
        };
        assert_eq!(waits, self.model.others(key).iter().any(in_the_way));
    }

    fn recall_name_conflicts(&mut self) {
        let (dir, session) = self.inode();
        let key = (dir.into(), session);
        let mut waits = false;
        self.with_send(key, |table, requester, send, due| {
            table.recall_name_conflicts(requester, dir, send, due);
            waits = !due.is_empty();
            None
        });
        assert_eq!(waits, self.model.others(key).iter().any(|mode| *mode != Permissions));
        // Such a command never recalls a lease that is only `Permissions`.
        let asked = |session| self.model.recalls.get(&(key.0, session)).copied();
        for (&(lease, session), &mode) in &self.model.held {
            if lease == key.0 && session != key.1 && mode == Read {
                let leaves = |keep: Option<LeaseMode>| keep.is_none_or(|keep| keep == Permissions);
                assert!(asked(session).is_some_and(|(_, keep, waited)| leaves(keep) && waited));
            }
        }
    }

    fn offer(&mut self) {
        let (ino, session) = self.inode();
        let key = (ino.into(), session);
        let is_directory = self.random.below(2) == 0;
        let requester = self.requester(key.1);
        let granted = match is_directory {
            true => self.table.offer_directory(requester, ino),
            false => self.table.offer(requester, ino),
        };
        let Some(mode) = granted else { return };
        let closes = |other: &Key, waited: bool| other.0 == key.0 && (waited || other.1 == key.1);
        assert!(!self.model.recalls.iter().any(|(other, recall)| closes(other, recall.2)));
        let before = self.model.held.insert(key, mode);
        match before {
            Some(before @ (Read | Write)) => assert_eq!(mode, before),
            _ => assert!(mode == Read || is_directory && mode == Permissions),
        }
        assert_ne!(before, Some(Shared));
        self.model.granted_at.insert(key, self.requester(key.1).last_recall);
    }

    fn give_up(&mut self) {
        let waiting: Vec<Key> = self.model.recalls.keys().copied().collect();
        if waiting.is_empty() {
            return;
        }
        let key = waiting[self.random.below(waiting.len() as u64) as usize];
        let (number, keep, _) = self.model.recalls[&key];
        let in_use = key.0.inode().is_some() && self.random.below(3) == 0;
        // Sometimes the acknowledgement of an earlier recall comes first.
        let older = self.random.below(4) == 0 && number > 1;
        let number = if older { number - 1 } else { number };
        let answer = Acknowledgement { number, key: key.0, in_use };
        self.table.acknowledge(key.1, answer, self.now_ns);
        if in_use {
            self.model.in_use.insert(key);
        } else if self.model.granted_at[&key] < number {
            self.model.in_use.remove(&key);
        }
        if !older {
            self.model.recalls.remove(&key);
            match keep {
                Some(mode) => self.model.held.insert(key, mode),
                None => self.model.held.remove(&key),
            };
        }
        self.model.settle(key.0);
        if !self.model.held.contains_key(&key) && !self.model.in_use.contains(&key) {
            self.model.forget(key);
        }
    }

    /// Old leases make room for new ones: checks that only held leases without a pending recall are
    /// recalled.
    fn make_room(&mut self) {
        let session = self.session();
        let model = &mut self.model;
        let mut sent = 0;
        let mut send = |session, lease, keep| {
            sent += 1;
            assert_eq!(keep, None);
            assert_ne!(session, SILENT);
            assert!(matches!(model.held.get(&(lease, session)), Some(Read | Permissions | Write)));
            let number = model.numbers.entry(session).or_default();
            *number += 1;
            assert_eq!(model.recalls.insert((lease, session), (*number, keep, false)), None);
            *number
        };
        self.table.make_room(session, &mut send);
        assert!(sent <= 2);
    }

    fn release(&mut self) {
        let key = self.key();
        let seen = self.random.below(1 + self.requester(key.1).last_recall);
        self.table.release(key.1, key.0, seen);
        if self.model.granted_at.get(&key).is_some_and(|&granted| granted <= seen) {
            self.model.forget(key);
        }
    }

    fn mark(&mut self) {
        let (ino, session) = self.inode();
        let key = (ino.into(), session);
        assert!(self.table.mark_in_use(self.requester(session), ino));
        self.model.in_use.insert(key);
        self.model.granted_at.insert(key, self.requester(key.1).last_recall);
    }

    fn reclaim(&mut self) {
        let (ino, session) = self.inode();
        let key = (ino.into(), session);
        let is_free = self.table.reclaim(session, ino);
        self.model.doomed.remove(&key.0);
        self.model.forget(key);
        assert_eq!(is_free, !self.model.is_used(key.0));
        if !is_free {
            self.model.doomed.insert(key.0);
        }
    }

    fn end_session(&mut self, session: SessionId) {
        let ended = self.table.end_session(session);
        let keys = self.model.held.keys().chain(&self.model.in_use).copied();
        let keys: BTreeSet<Key> = keys.filter(|key| key.1 == session).collect();
        assert_eq!(ended, keys.iter().map(|key| key.0).collect::<Vec<_>>());
        keys.into_iter().for_each(|key| self.model.forget(key));
    }

    fn step(&mut self) {
        self.now_ns += self.random.below(COOL_DOWN_NS / 8);
        match self.random.below(100) {
            0..22 => self.acquire(),
            22..25 => self.grant_exclusive(),
            25..33 => self.recall_conflicting(),
            33..40 => self.recall_name_conflicts(),
            40..60 => self.offer(),
            60..80 => self.give_up(),
            80..85 => self.make_room(),
            85..90 => self.release(),
            90..95 => self.mark(),
            95..98 => self.reclaim(),
            _ => {
                let session = self.session();
                self.end_session(session);
            }
        }
        self.model.check(&self.table);
        assert_eq!(self.table.take_abandoned(), std::mem::take(&mut self.model.abandoned));
    }
}

#[test]
fn random_histories_are_as_a_naive_table_has_them() {
    for seed in 0..HISTORIES {
        // In every other history, the limit is the largest possible number of leases.
        let total = if seed % 2 == 0 { 1000 } else { (SESSIONS * (INODES + 1)) as usize };
        let table = LeaseTable::new(Limits { total, per_session: 1000 });
        let mut history = History { table, model: Model::default(), random: Random(seed), now_ns: 0 };
        (0..STEPS).for_each(|_| history.step());
        (1..=SESSIONS).for_each(|session| history.end_session(SessionId(session)));
        history.model.check(&history.table);
        let later = requester(9, 0, history.now_ns + COOL_DOWN_NS);
        assert_eq!(history.table.offer(later, InodeId(9)), Some(Read));
        history.table.end_session(SessionId(9));
        assert!(history.table.is_empty() && history.table.by_session.is_empty(), "something is left");
    }
}
