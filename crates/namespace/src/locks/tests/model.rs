//! Random histories, compared step by step with a table that stores every byte separately.

use super::*;

/// Bytes of the modelled file; the last one represents all later bytes, too.
const BYTES: usize = 7;
const HOLDERS: u64 = 5;
const INODES: u64 = 2;
const STEPS: usize = 400;
const HISTORIES: u64 = 150;

type Key = (InodeId, Holder);

/// The naive table: the kind of lock that each holder has on each byte.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<Key, [Option<LockKind>; BYTES]>,
    queue: Vec<(WaitId, LockRequest)>,
}

fn covers(request: &LockRequest, byte: usize) -> bool {
    request.holder.family == Flock || (request.range.start..=request.range.last).contains(&(byte as u64))
}

impl Model {
    fn blockers(&self, request: &LockRequest) -> BTreeSet<Holder> {
        let in_the_way = |(&(ino, holder), bytes): (&Key, &[Option<LockKind>; BYTES])| {
            let clash = |byte: usize| {
                covers(request, byte)
                    && bytes[byte].is_some_and(|kind| kind == Exclusive || request.kind == Exclusive)
            };
            let other =
                ino == request.ino && holder != request.holder && holder.family == request.holder.family;
            (other && (0..BYTES).any(clash)).then_some(holder)
        };
        self.bytes.iter().filter_map(in_the_way).collect()
    }

    fn set(&mut self, request: &LockRequest, kind: Option<LockKind>) {
        let bytes = self.bytes.entry((request.ino, request.holder)).or_default();
        (0..BYTES).filter(|&byte| covers(request, byte)).for_each(|byte| bytes[byte] = kind);
    }

    /// All holders that these holders wait for, directly or through others.
    fn waited_for(&self, from: BTreeSet<Holder>) -> BTreeSet<Holder> {
        let mut reached = from;
        loop {
            let waiting = self.queue.iter().filter(|(_, request)| reached.contains(&request.holder));
            let next: BTreeSet<Holder> = waiting.flat_map(|(_, request)| self.blockers(request)).collect();
            if next.is_subset(&reached) {
                return reached;
            }
            reached.extend(next);
        }
    }

    /// The outcome of a request; `next` is the number that a wait would get.
    fn lock(&mut self, request: &LockRequest, on_conflict: OnConflict, next: WaitId) -> LockOutcome {
        if request.holder.family == Flock {
            let had = self.bytes.get(&(request.ino, request.holder)).and_then(|bytes| bytes[0]);
            if had != Some(request.kind) {
                self.set(request, None);
            }
        }
        let blockers = self.blockers(request);
        if blockers.is_empty() {
            self.set(request, Some(request.kind));
            return LockOutcome::Granted;
        }
        if on_conflict == Refuse {
            return LockOutcome::WouldBlock;
        }
        if request.holder.family == Posix && self.waited_for(blockers).contains(&request.holder) {
            return LockOutcome::Deadlock;
        }
        self.queue.push((next, *request));
        LockOutcome::Waiting(next)
    }

    /// Serves the queue until a round through it grants nothing.
    fn grant(&mut self) -> Vec<WaitId> {
        let mut granted = Vec::new();
        loop {
            let before = granted.len();
            for (wait, request) in self.queue.clone() {
                if self.blockers(&request).is_empty() {
                    self.set(&request, Some(request.kind));
                    self.queue.retain(|(queued, _)| *queued != wait);
                    granted.push(wait);
                }
            }
            if granted.len() == before {
                return granted;
            }
        }
    }
}

/// A stream of small numbers determined by a seed (xorshift64*, Vigna 2016).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn request(&mut self) -> LockRequest {
        let space = if self.below(4) == 0 { Flock } else { Posix };
        let (a, b) = (self.below(BYTES as u64), self.below(BYTES as u64));
        let last = if a.max(b) == BYTES as u64 - 1 { u64::MAX } else { a.max(b) };
        let kind = if self.below(2) == 0 { Shared } else { Exclusive };
        let number = self.below(HOLDERS);
        LockRequest {
            ino: InodeId(1 + self.below(INODES)),
            holder: holder(space, number),
            ..posix(number, kind, a.min(b), last)
        }
    }
}

/// The locks of the model as the table should list them: for each holder, maximal runs of one kind.
fn runs(model: &Model) -> Vec<(Key, LockKind, u64, u64)> {
    let mut runs = Vec::new();
    for (&key, bytes) in &model.bytes {
        let mut byte = 0;
        while byte < BYTES {
            let start = byte;
            while byte < BYTES && bytes[byte] == bytes[start] {
                byte += 1;
            }
            let last = if byte == BYTES { u64::MAX } else { byte as u64 - 1 };
            if let Some(kind) = bytes[start] {
                runs.push((key, kind, start as u64, last));
            }
        }
    }
    runs
}

fn check_state(table: &LockTable, model: &Model) {
    let mut listed = Vec::new();
    for (&ino, locks) in &table.inodes {
        assert!(!locks.held.is_empty() || !locks.queue.is_empty(), "an inode without locks is forgotten");
        assert!(locks.held.is_sorted_by_key(|lock| lock.range.start));
        listed.extend(locks.held.iter().map(|l| ((ino, l.holder), l.kind, l.range.start, l.range.last)));
    }
    assert_eq!(listed.len(), table.held_total);
    listed.sort_by_key(|&(key, _, start, _)| (key, start));
    assert_eq!(listed, runs(model));
    let waiting: Vec<_> = table.waits.iter().map(|(&wait, request)| (wait, request.ino)).collect();
    let expected: Vec<_> = model.queue.iter().map(|(wait, request)| (*wait, request.ino)).collect();
    assert_eq!(waiting, expected);
    assert_eq!(table.waits_by_holder.len(), table.waits.len());
    for request in table.waits.values() {
        assert!(table.test(request).is_some(), "a waiter has a lock in its way");
    }
}

fn sorted(mut waits: Vec<WaitId>) -> Vec<WaitId> {
    waits.sort();
    waits
}

/// One random call on both; returns the table's outcome if it was a lock.
fn step(table: &mut LockTable, model: &mut Model, dice: &mut Dice) -> Option<LockOutcome> {
    let request = dice.request();
    match dice.below(20) {
        0..11 => {
            let on_conflict = if dice.below(3) == 0 { Refuse } else { Wait };
            let expected = model.lock(&request, on_conflict, WaitId(table.last_wait + 1));
            let outcome = table.lock(&request, on_conflict);
            assert_eq!(outcome.outcome, expected, "{request:?}");
            assert_eq!(outcome.granted, model.grant());
            return Some(expected);
        }
        11..16 => {
            model.set(&request, None);
            assert_eq!(table.unlock(request.ino, request.holder, request.range), Ok(model.grant()));
        }
        16..18 => {
            let wait = WaitId(table.last_wait.saturating_sub(dice.below(6)));
            let before = model.queue.len();
            model.queue.retain(|(queued, _)| *queued != wait);
            assert_eq!(table.cancel(wait), model.queue.len() < before);
            assert_eq!(model.grant(), [], "nobody waits for a waiter");
        }
        18 => {
            model.bytes.remove(&(request.ino, request.holder));
            assert_eq!(table.release_owner(request.ino, request.holder), model.grant());
        }
        _ => {
            let session = request.holder.session;
            let of_session = |(_, queued): &&(WaitId, LockRequest)| queued.holder.session == session;
            let cancelled: Vec<WaitId> =
                model.queue.iter().filter(of_session).map(|(wait, _)| *wait).collect();
            model.queue.retain(|(_, queued)| queued.holder.session != session);
            model.bytes.retain(|(_, holder), _| holder.session != session);
            let released = table.release_session(session);
            assert_eq!(released.cancelled, cancelled);
            assert_eq!(sorted(released.granted), sorted(model.grant()));
        }
    }
    None
}

#[test]
fn random_histories_match() {
    let (mut waited, mut deadlocked, mut blocked) = (0, 0, 0);
    for seed in 1..=HISTORIES {
        let mut table = LockTable::new();
        let mut model = Model::default();
        let mut dice = Dice(seed * 0x9e37_79b9);
        for _ in 0..STEPS {
            match step(&mut table, &mut model, &mut dice) {
                Some(LockOutcome::Waiting(_)) => waited += 1,
                Some(LockOutcome::Deadlock) => deadlocked += 1,
                Some(LockOutcome::WouldBlock) => blocked += 1,
                _ => {}
            }
            check_state(&table, &model);
        }
    }
    assert!(waited > 1000 && deadlocked > 1000 && blocked > 1000, "{waited} {deadlocked} {blocked}");
}
