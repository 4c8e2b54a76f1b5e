//! Leases: which session relies on which state, and which leases are recalled. A lease is on an
//! inode, or on names of a directory ([`LeaseKey`]).
//!
//! A [`LeaseTable`] decides; the caller numbers recalls, delivers them to the sessions and waits
//! for their acknowledgements.
//!
//! - `Read` and `Permissions` are compatible with each other, `Shared` with `Shared`, and nothing
//!   else of two sessions on one inode. A session holds one mode on an inode, the strongest that it
//!   needs. On names of a directory, the only mode is `Write`: a name-prefix delegation.
//! - A session that adds or removes names in a directory leaves `Permissions` there to the others.
//! - `Write` on a directory is a directory delegation: only its holder knows the names. A lookup by
//!   another session recalls it to `Permissions`.
//! - A recalled lease stays held until the recall is resolved: by an acknowledgement, a release or
//!   the end of the session. A recall that asks for more replaces a pending one.
//! - While a recall is pending, only leases compatible with what it leaves are granted on its
//!   inode.
//! - A session that has a file open without a lease on it has a use mark, so that the file isn't
//!   reclaimed.
//! - When there are many leases, old ones are recalled to make room for new ones
//!   ([`LeaseTable::make_room`]). No session waits for that, and compatible leases are granted
//!   meanwhile.
//!
//! Invariants: no two sessions hold incompatible leases on one inode; an inode without leases and
//! uses stays in the table for [`COOL_DOWN_NS`] at most; leases and marks never exceed [`Limits`].
//! Pure, and deterministic: nothing is iterated in hash order. A table may be one of several
//! shards, each with its own inodes.

mod key;
mod lease_limits;

pub use key::{LeaseKey, NamePrefixId};
use lease_limits::SessionLeases;
use std::collections::{BTreeMap, VecDeque};
use types::{InodeId, PartitionId, SessionId};
pub use wire::InodeAccess;
use wire::LeaseMode;

/// How long no lease is offered on an inode after a recall, in nanoseconds. Without it, two
/// sessions that change the same directory would pass its lease back and forth with every change.
pub const COOL_DOWN_NS: u64 = 1_000_000_000;

/// Inodes in cool-down at a time, in a table; beyond that, the oldest leave it early.
const MAX_COOLING: usize = 16_384;

/// How many leases and marks a table holds. At a limit nothing is granted; from seven eighths of it
/// on leases are granted on request only, and from three quarters on old leases are recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of all sessions.
    pub total: usize,
    /// Of one session.
    pub per_session: usize,
}

/// Number of leases and uses of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseCounts {
    /// Leases.
    pub leases: u64,
    /// Files that are open without a lease.
    pub in_use: u64,
}

/// A pending recall that a command has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub struct PendingRecall {
    pub key: LeaseKey,
    pub session: SessionId,
    pub number: u64,
}

/// A session's acknowledgement of a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledgement {
    /// What the recalled lease is on.
    pub key: LeaseKey,
    /// Number of the recall.
    pub number: u64,
    /// The session still has the file open.
    pub in_use: bool,
}

/// Numbers a recall within its session, and sends it: session, lease, and the mode that may be
/// kept.
pub type Send<'a> = &'a mut dyn FnMut(SessionId, LeaseKey, Option<LeaseMode>) -> u64;

/// A requested lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseRequest {
    /// This mode. For `Write`, `Shared` is granted while other sessions write, unless the session
    /// has `Shared` already: then it needs more.
    Mode(LeaseMode),
    /// The exclusive lease: `Write`, whatever other sessions do.
    Exclusive,
}

/// The session that requests a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requester {
    /// The session.
    pub session: SessionId,
    /// Recalls sent to this session so far.
    pub last_recall: u64,
    /// The time, in nanoseconds of a monotonic clock.
    pub now_ns: u64,
    /// The session acknowledges recalls soon, so its leases can be recalled to make room.
    pub acknowledges: bool,
}

/// A session's lease on an inode or on names, and its use of the inode.
#[derive(Clone, Copy, Debug)]
struct Holder {
    session: SessionId,
    mode: Option<LeaseMode>,
    /// The session has the file open, whatever the lease.
    in_use: bool,
    /// The pending recall.
    recall: Option<RecallState>,
    /// Recalls sent to the session when it last got something here.
    granted_at: u64,
    /// Its sequence number in the session's list of leases by age; 0: not in the list.
    age_number: u32,
    /// How often it is still skipped when it would be recalled to make room.
    second_chances: u8,
}

#[derive(Clone, Copy, Debug)]
struct RecallState {
    number: u64,
    retain: Option<LeaseMode>,
    /// The lease conflicts with a command, which may wait for the acknowledgement.
    blocks_command: bool,
    /// It was sent to make room.
    to_make_room: bool,
}

#[derive(Default)]
struct Entry {
    /// Usually one or two.
    holders: Vec<Holder>,
    recalled_ns: Option<u64>,
    /// The inode has no name and is to be reclaimed when its last lease and use end.
    reclaim_deferred: bool,
    /// A directory with a delegation now or earlier: lookups leave `Permissions` to the holder, and
    /// nothing can be shared.
    is_directory: bool,
    /// Lease epoch of the current right to write; 0 until it is requested.
    epoch: u64,
}

/// The leases of one shard.
pub struct LeaseTable {
    limits: Limits,
    entries: BTreeMap<LeaseKey, Entry>,
    /// Holders in `entries`, all and by session.
    total: usize,
    by_session: BTreeMap<SessionId, SessionLeases>,
    /// Those of them that are recalled to make room.
    recalled_for_room: usize,
    /// The last sequence number, and the session that was last asked to make room.
    last_age_number: u32,
    last_victim: SessionId,
    /// Recalled leases, by time.
    cooling: VecDeque<(u64, LeaseKey)>,
    /// Doomed inodes without leases and uses.
    abandoned: Vec<InodeId>,
}

impl LeaseTable {
    /// A table without leases.
    pub fn new(limits: Limits) -> LeaseTable {
        LeaseTable {
            limits,
            entries: BTreeMap::new(),
            total: 0,
            by_session: BTreeMap::new(),
            recalled_for_room: 0,
            last_age_number: 0,
            last_victim: SessionId::default(),
            cooling: VecDeque::new(),
            abandoned: Vec::new(),
        }
    }

    /// Keys in the table, including those in cool-down.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no session holds a lease or uses an inode, and no key is in cool-down.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Grants `Read` without a request, if that conflicts with no lease. Returns the mode that the
    /// session holds and may rely on: none while it is recalled, nor for `Shared`, which is nothing
    /// to rely on.
    pub fn offer(&mut self, requester: Requester, ino: InodeId) -> Option<LeaseMode> {
        self.offer_or(requester, ino.into(), (LeaseMode::Read, None))
    }

    /// The same for a directory. During cool-down, it grants `Permissions`: changes of names don't
    /// conflict with that.
    pub fn offer_directory(&mut self, requester: Requester, ino: InodeId) -> Option<LeaseMode> {
        self.offer_or(requester, ino.into(), (LeaseMode::Read, Some(LeaseMode::Permissions)))
    }

    /// The same if no session may know all names of the directory: grants `Permissions` at most.
    pub fn offer_permissions(&mut self, requester: Requester, ino: InodeId) -> Option<LeaseMode> {
        self.offer_or(requester, ino.into(), (LeaseMode::Permissions, Some(LeaseMode::Permissions)))
    }

    fn offer_or(
        &mut self,
        requester: Requester,
        key: LeaseKey,
        (mut offered, while_cooling): (LeaseMode, Option<LeaseMode>),
    ) -> Option<LeaseMode> {
        self.cool_down(requester.now_ns);
        let room = self.has_room_for_offers(requester.session);
        match self.entries.get_mut(&key) {
            Some(entry) => {
                if entry.is_blocked_for(requester.session) {
                    return None;
                }
                match entry.find(requester.session).map(|own| own.mode) {
                    Some(Some(LeaseMode::Shared)) => return None,
                    Some(Some(mode @ (LeaseMode::Read | LeaseMode::Write))) => {
                        return self.hold(requester, key, mode);
                    }
                    Some(_) => {}
                    None if !room => return None,
                    None => {}
                }
                let shared = entry.others(requester.session).any(|other| !other.allows(LeaseMode::Read));
                if shared || entry.reclaim_deferred {
                    return None;
                }
                if entry.recalled_ns.is_some() {
                    offered = while_cooling?;
                }
            }
            None if !room => return None,
            None => {}
        }
        self.hold(requester, key, offered)
    }

    /// Grants `Write` on a directory, a directory delegation. Recalls the leases of other sessions,
    /// and adds pending recalls to `due`: then nothing is granted, and the caller has to repeat the
    /// request. During cool-down nothing is recalled for this.
    pub fn grant_exclusive(
        &mut self,
        requester: Requester,
        key: LeaseKey,
        send: Send<'_>,
        due: &mut Vec<PendingRecall>,
    ) -> Option<LeaseMode> {
        self.cool_down(requester.now_ns);
        let room = self.has_room_for_offers(requester.session);
        let own = match self.entries.get(&key) {
            Some(entry) => {
                let is_taken = entry.others(requester.session).next().is_some();
                let is_cooling_down = is_taken && entry.recalled_ns.is_some();
                if is_cooling_down || entry.is_blocked_for(requester.session) || entry.reclaim_deferred {
                    return None;
                }
                entry.find(requester.session).copied()
            }
            None => None,
        };
        if own.is_none() && !room {
            return None;
        }
        let before = due.len();
        self.recall_conflicting(requester, key, InodeAccess::Write, send, due);
        let is_used = |entry: &Entry| entry.others(requester.session).next().is_some();
        if due.len() > before || self.entries.get(&key).is_some_and(is_used) {
            return None;
        }
        let mode = self.hold(requester, key, LeaseMode::Write)?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.is_directory = true;
        }
        Some(mode)
    }

    /// Acquires a lease. Recalls conflicting leases, and adds pending recalls to `due`: then
    /// nothing is granted, and the caller has to repeat the request.
    ///
    /// Never waits for the session itself: while its own lease is recalled, or at a limit, nothing
    /// is granted.
    pub fn acquire(
        &mut self,
        requester: Requester,
        ino: InodeId,
        request: LeaseRequest,
        send: Send<'_>,
        due: &mut Vec<PendingRecall>,
    ) -> Option<LeaseMode> {
        let key = LeaseKey::Inode(ino);
        self.cool_down(requester.now_ns);
        let requested = match request {
            LeaseRequest::Mode(mode) => mode,
            LeaseRequest::Exclusive => LeaseMode::Write,
        };
        let Some(entry) = self.entries.get_mut(&key) else {
            return self.hold(requester, key, requested);
        };
        let own = entry.holder(requester.session).copied();
        if own.is_some_and(|own| own.recall.is_some()) {
            return None;
        }
        let held = own.and_then(|own| own.mode);
        let wanted = join(held, requested);
        let is_exclusive = request == LeaseRequest::Exclusive
            || (requested == LeaseMode::Write && held == Some(LeaseMode::Shared));
        let becomes_shared = !is_exclusive
            && wanted == LeaseMode::Write
            && entry.others(requester.session).any(Holder::writes);
        let mode = if becomes_shared { LeaseMode::Shared } else { wanted };
        let before = due.len();
        entry.recall_conflicting((requester.session, key), |held| conflict_with_mode(held, mode), send, due);
        // A command that waits for a recall must not find a new holder afterwards.
        for other in entry.others(requester.session) {
            if let Some(pending) = other.recall
                && pending.blocks_command
                && pending.retain != Some(mode)
            {
                due.push(PendingRecall { key, session: other.session, number: pending.number });
            }
        }
        if due.len() > before {
            self.note_recall(key, requester.now_ns);
            return None;
        }
        self.hold(requester, key, mode)
    }

    /// Recalls the leases of other sessions that conflict with a command, and adds pending recalls
    /// to `due`.
    pub fn recall_conflicting(
        &mut self,
        requester: Requester,
        key: LeaseKey,
        access: InodeAccess,
        send: Send<'_>,
        due: &mut Vec<PendingRecall>,
    ) {
        let Some(entry) = self.entries.get(&key) else { return };
        match access {
            InodeAccess::Read if entry.is_directory => {
                self.recall_where(requester, key, conflict_with_lookup, send, due)
            }
            _ => self.recall_where(requester, key, |held| conflict_with_access(held, access), send, due),
        }
    }

    /// The same for a command that adds or removes names of a directory, and changes only its
    /// times, size and link count besides.
    pub fn recall_name_conflicts(
        &mut self,
        requester: Requester,
        ino: InodeId,
        send: Send<'_>,
        due: &mut Vec<PendingRecall>,
    ) {
        self.recall_where(requester, ino.into(), conflict_with_name_change, send, due);
    }

    fn recall_where(
        &mut self,
        requester: Requester,
        key: LeaseKey,
        conflict: impl Fn(LeaseMode) -> Option<Option<LeaseMode>>,
        send: Send<'_>,
        due: &mut Vec<PendingRecall>,
    ) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let before = due.len();
        entry.recall_conflicting((requester.session, key), conflict, send, due);
        if due.len() > before {
            self.note_recall(key, requester.now_ns);
        }
    }

    /// Whether another session may write the inode, so that only that one knows its size.
    pub fn is_written_elsewhere(&self, session: SessionId, ino: InodeId) -> bool {
        self.entries.get(&ino.into()).is_some_and(|entry| entry.others(session).any(Holder::writes))
    }

    /// Whether a session may write the inode, or holds the names.
    pub fn is_written_by(&self, session: SessionId, key: LeaseKey) -> bool {
        self.entries.get(&key).and_then(|entry| entry.find(session)).is_some_and(Holder::writes)
    }

    /// The lease epoch of an inode: a number that all its users share. It increases whenever the
    /// right to write passes to another session or ends. `fresh`: returns a number larger than all
    /// before.
    ///
    /// It stays when the writer keeps a weaker mode at a recall, and when one of several writers
    /// gives up the right in that way: a session acknowledges only after its requests have
    /// completed.
    pub fn epoch(&mut self, ino: InodeId, fresh: impl FnOnce() -> u64) -> u64 {
        let Some(entry) = self.entries.get_mut(&ino.into()) else { return fresh() };
        if entry.epoch == 0 {
            entry.epoch = fresh();
        }
        entry.epoch
    }

    /// Starts a new epoch of the inode, unless the current one is larger than `past`.
    pub fn end_epoch(&mut self, ino: InodeId, past: u64) {
        if let Some(entry) = self.entries.get_mut(&ino.into())
            && entry.epoch <= past
        {
            entry.epoch = 0;
        }
    }

    /// Whether a recall is pending.
    pub fn is_pending(&self, due: &PendingRecall) -> bool {
        let holder = self.entries.get(&due.key).and_then(|entry| entry.find(due.session));
        holder.and_then(|holder| holder.recall).is_some_and(|pending| pending.number == due.number)
    }

    /// Marks an inode as open by a session, if its lease doesn't imply that. Returns false at a
    /// limit.
    pub fn mark_in_use(&mut self, requester: Requester, ino: InodeId) -> bool {
        let key = LeaseKey::Inode(ino);
        let has_room = self.has_room(requester.session);
        match self.entries.get_mut(&key).and_then(|entry| entry.holder(requester.session)) {
            Some(own) => {
                own.in_use = true;
                own.granted_at = requester.last_recall;
            }
            None if !has_room => return false,
            None => self.add(requester, key, Holder { in_use: true, ..Holder::new(requester) }),
        }
        true
    }

    /// Handles a recall acknowledgement. One of a recall that was resolved or replaced only updates
    /// whether the inode is in use.
    pub fn acknowledge(&mut self, session: SessionId, answer: Acknowledgement, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(&answer.key) else { return };
        let Some(own) = entry.holder(session) else { return };
        // An acknowledgement doesn't cover a file that was opened after its recall.
        own.in_use = answer.in_use || (own.in_use && own.granted_at >= answer.number);
        if let Some(pending) = own.recall
            && pending.number == answer.number
        {
            own.recall = None;
            let ends = own.mode == Some(LeaseMode::Write) && pending.retain.is_none();
            own.mode = pending.retain;
            if ends {
                entry.epoch = 0;
            }
            if pending.to_make_room {
                self.recall_for_room_completed(session);
            }
            if pending.blocks_command {
                self.note_recall(answer.key, now_ns);
            }
        }
        self.forget_holders(answer.key, |holder| {
            holder.session == session && holder.mode.is_none() && !holder.in_use
        });
    }

    /// Releases a session's lease and use, unless it was granted something after it had
    /// confirmed `seen` recalls: then the release is older than that.
    pub fn release(&mut self, session: SessionId, key: LeaseKey, seen: u64) {
        self.forget_holders(key, |holder| holder.session == session && holder.granted_at <= seen);
    }

    /// Drops a session's use of an inode without a name. Returns true if no other session uses it:
    /// then it can be deleted. Otherwise it becomes [abandoned](LeaseTable::take_abandoned) later.
    pub fn reclaim(&mut self, session: SessionId, ino: InodeId) -> bool {
        let key = LeaseKey::Inode(ino);
        let Some(entry) = self.entries.get_mut(&key) else { return true };
        let is_free = entry.others(session).next().is_none();
        entry.reclaim_deferred = !is_free;
        self.forget_holders(key, |holder| holder.session == session);
        is_free
    }

    /// Ends a session; returns what it had a lease or use of.
    pub fn end_session(&mut self, session: SessionId) -> Vec<LeaseKey> {
        self.drop_session_leases(session, |_| true)
    }

    /// Drops some of a session's leases and uses; returns what they were on.
    pub fn drop_session_leases(
        &mut self,
        session: SessionId,
        of: impl Fn(LeaseKey) -> bool,
    ) -> Vec<LeaseKey> {
        if !self.by_session.contains_key(&session) {
            return Vec::new();
        }
        let held = self.entries.iter().filter(|(key, entry)| of(**key) && entry.find(session).is_some());
        let held: Vec<LeaseKey> = held.map(|(key, _)| *key).collect();
        for &key in &held {
            self.forget_holders(key, |holder| holder.session == session);
        }
        held
    }

    /// Transfers the right to write an inode to another session, or grants `Write` if there is no
    /// lease. Returns false if neither is possible, or at a limit. Commands that wait for `from`
    /// have to check again.
    pub fn transfer(&mut self, from: SessionId, to: Requester, ino: InodeId) -> bool {
        let key = LeaseKey::Inode(ino);
        let Some(entry) = self.entries.get(&key) else {
            return self.hold(to, key, LeaseMode::Write).is_some();
        };
        let (own, held) = (entry.find(to.session).copied(), entry.find(from).copied());
        if own.is_some_and(|own| own.writes()) {
            self.forget_holders(key, |holder| holder.session == from);
            return true;
        }
        let is_free = || entry.others(to.session).all(|other| other.mode.is_none());
        let mode = match held.and_then(|held| held.mode) {
            Some(mode @ (LeaseMode::Write | LeaseMode::Shared)) => mode,
            None if is_free() => LeaseMode::Write,
            _ => return false,
        };
        if self.hold(to, key, mode).is_none() {
            return false;
        }
        self.forget_holders(key, |holder| holder.session == from);
        true
    }

    /// Drops everything in a partition; returns the keys that were in the table.
    pub fn forget_partition(&mut self, partition: PartitionId) -> Vec<LeaseKey> {
        let of_it = |key: &&LeaseKey| key.partition() == partition;
        let keys: Vec<LeaseKey> = self.entries.keys().filter(of_it).copied().collect();
        for &key in &keys {
            if let Some(entry) = self.entries.get_mut(&key) {
                (entry.reclaim_deferred, entry.recalled_ns) = (false, None);
            }
            self.forget_holders(key, |_| true);
        }
        keys
    }

    /// Adds up each session's leases, and files that are open without one.
    pub fn tally(&self, into: &mut BTreeMap<SessionId, LeaseCounts>) {
        for holder in self.entries.values().flat_map(|entry| &entry.holders) {
            let tally = into.entry(holder.session).or_default();
            tally.leases += u64::from(holder.mode.is_some());
            tally.in_use += u64::from(holder.mode.is_none() && holder.in_use);
        }
    }

    /// Returns the inodes whose reclaim was deferred and is possible now.
    pub fn take_abandoned(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.abandoned)
    }

    fn hold(&mut self, requester: Requester, key: LeaseKey, mode: LeaseMode) -> Option<LeaseMode> {
        let had_writer = self.entries.get(&key).is_some_and(|entry| entry.holders.iter().any(Holder::writes));
        let has_room = self.has_room(requester.session);
        match self.entries.get_mut(&key).and_then(|entry| entry.holder(requester.session)) {
            Some(own) => {
                own.mode = Some(mode);
                own.granted_at = requester.last_recall;
            }
            None if !has_room => return None,
            None => self.add(requester, key, Holder { mode: Some(mode), ..Holder::new(requester) }),
        }
        if let Some(entry) = self.entries.get_mut(&key)
            && mode != LeaseMode::Read
            && !had_writer
        {
            entry.epoch = 0;
        }
        if requester.acknowledges {
            self.note_use(requester.session, key);
        }
        Some(mode)
    }

    fn add(&mut self, requester: Requester, key: LeaseKey, holder: Holder) {
        let entry = self.entries.entry(key).or_default();
        if entry.holders.capacity() == 0 {
            entry.holders.reserve_exact(1);
        }
        entry.holders.push(holder);
        self.total += 1;
        self.by_session.entry(requester.session).or_default().holders += 1;
    }

    /// Removes holders of a lease, and its entry if nothing is left of it.
    fn forget_holders(&mut self, key: LeaseKey, is_gone: impl Fn(&Holder) -> bool) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.holders.retain(|holder| {
            if !is_gone(holder) {
                return true;
            }
            if holder.writes() {
                entry.epoch = 0;
            }
            let was_recalled_for_room = holder.recall.is_some_and(|pending| pending.to_make_room);
            self.total -= 1;
            self.recalled_for_room -= usize::from(was_recalled_for_room);
            if let Some(own) = self.by_session.get_mut(&holder.session) {
                own.holders -= 1;
                own.being_recalled -= usize::from(was_recalled_for_room);
                if own.holders == 0 {
                    self.by_session.remove(&holder.session);
                }
            }
            false
        });
        if !entry.holders.is_empty() {
            return;
        }
        if std::mem::take(&mut entry.reclaim_deferred) {
            self.abandoned.extend(key.inode());
        }
        if entry.recalled_ns.is_none() {
            self.entries.remove(&key);
        }
    }

    fn note_recall(&mut self, key: LeaseKey, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        // One entry for each time: a later one is in the queue when the first expires.
        if entry.recalled_ns.replace(now_ns) != Some(now_ns) {
            self.cooling.push_back((now_ns, key));
        }
        if self.cooling.len() > MAX_COOLING {
            self.forget_oldest();
        }
    }

    /// Ends cool-downs whose recall is old enough.
    fn cool_down(&mut self, now_ns: u64) {
        while self.cooling.front().is_some_and(|(then, _)| now_ns.saturating_sub(*then) >= COOL_DOWN_NS) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((then, key)) = self.cooling.pop_front() else { return };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.recalled_ns == Some(then) {
            entry.recalled_ns = None;
            if entry.holders.is_empty() {
                self.entries.remove(&key);
            }
        }
    }
}

impl Holder {
    fn new(requester: Requester) -> Holder {
        Holder {
            session: requester.session,
            mode: None,
            in_use: false,
            recall: None,
            granted_at: requester.last_recall,
            age_number: 0,
            second_chances: 0,
        }
    }

    fn writes(&self) -> bool {
        matches!(self.mode, Some(LeaseMode::Shared | LeaseMode::Write))
    }

    /// Whether another session may hold `mode` at the same time.
    fn allows(&self, mode: LeaseMode) -> bool {
        self.mode.is_none_or(|held| conflict_with_mode(held, mode).is_none())
    }
}

impl Entry {
    fn find(&self, session: SessionId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.session == session)
    }

    fn holder(&mut self, session: SessionId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.session == session)
    }

    fn others(&self, session: SessionId) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(move |holder| holder.session != session)
    }

    /// Whether a command may wait for an acknowledgement here, or the session has a pending recall.
    fn is_blocked_for(&self, session: SessionId) -> bool {
        let blocks =
            |holder: &Holder, pending: RecallState| pending.blocks_command || holder.session == session;
        self.holders.iter().any(|holder| holder.recall.is_some_and(|pending| blocks(holder, pending)))
    }

    /// Recalls conflicting leases of other sessions. `conflict`: the weaker mode that may be kept
    /// of a conflicting one.
    fn recall_conflicting(
        &mut self,
        (session, key): (SessionId, LeaseKey),
        conflict: impl Fn(LeaseMode) -> Option<Option<LeaseMode>>,
        send: Send<'_>,
        due: &mut Vec<PendingRecall>,
    ) {
        for holder in self.holders.iter_mut().filter(|holder| holder.session != session) {
            let Some(keep) = holder.mode.and_then(&conflict) else { continue };
            let number = match &mut holder.recall {
                // What the pending recall leaves doesn't conflict.
                Some(pending) if pending.retain.and_then(&conflict).is_none() => {
                    pending.blocks_command = true;
                    pending.number
                }
                replaced => {
                    let keep = replaced.map_or(keep, |pending| pending.retain.and_then(&conflict).flatten());
                    let number = send(holder.session, key, keep);
                    holder.recall =
                        Some(RecallState { number, retain: keep, blocks_command: true, to_make_room: false });
                    number
                }
            };
            due.push(PendingRecall { key, session: holder.session, number });
        }
    }
}

/// The weakest mode that covers both.
fn join(held: Option<LeaseMode>, requested: LeaseMode) -> LeaseMode {
    match held {
        None | Some(LeaseMode::Permissions) => requested,
        Some(held) if held == requested || requested == LeaseMode::Permissions => held,
        Some(_) => LeaseMode::Write,
    }
}

/// What may be kept of a lease that conflicts with a command; `None` if it doesn't conflict.
fn conflict_with_access(held: LeaseMode, access: InodeAccess) -> Option<Option<LeaseMode>> {
    match (access, held) {
        (InodeAccess::Read, LeaseMode::Write) => Some(Some(LeaseMode::Shared)),
        (InodeAccess::Read, _) => None,
        (InodeAccess::SharedWrite, held) => conflict_with_mode(held, LeaseMode::Shared),
        (InodeAccess::Write, _) => Some(None),
    }
}

/// The same for a lookup in a directory: the holder of a delegation may keep its permissions.
fn conflict_with_lookup(held: LeaseMode) -> Option<Option<LeaseMode>> {
    (held == LeaseMode::Write).then_some(Some(LeaseMode::Permissions))
}

/// The same for a command that changes only names.
fn conflict_with_name_change(held: LeaseMode) -> Option<Option<LeaseMode>> {
    match held {
        LeaseMode::Permissions => None,
        LeaseMode::Read => Some(Some(LeaseMode::Permissions)),
        LeaseMode::Shared | LeaseMode::Write => Some(None),
    }
}

/// What may be kept of a lease that conflicts with another one; `None` if it doesn't conflict.
fn conflict_with_mode(held: LeaseMode, wanted: LeaseMode) -> Option<Option<LeaseMode>> {
    use LeaseMode::{Permissions, Read, Shared, Write};
    match (wanted, held) {
        (Read | Permissions, Read | Permissions) | (Shared, Shared) => None,
        (Read | Shared, Write) => Some(Some(wanted)),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests;
