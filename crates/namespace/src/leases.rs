//! Leases: who relies on what of which inode, and who is asked to give something up.
//!
//! A [`LeaseTable`] decides; the caller numbers recalls, carries them to the sessions and waits for
//! their yields.
//!
//! - `Read` and `Permissions` go with each other, `Shared` with `Shared`, and nothing else of two
//!   sessions on one inode. What one session holds is one mode, the strongest that it needs.
//! - Who adds or removes names in a directory leaves `Permissions` there to the others.
//! - Who has `Write` on a directory is the only one who knows its names: others that look for one
//!   recall that to `Permissions`.
//! - A recall leaves its lease held until it is answered: by a yield, a release or the end of the
//!   session. One that asks for more replaces an unanswered one.
//! - While a recall is unanswered, nothing is granted on its inode but what goes with what the
//!   recall leaves.
//! - A session that has a file open without a lease on it has a mark of use, so that it isn't
//!   reclaimed.
//! - When there are many leases, old ones are recalled for the sake of new ones
//!   ([`LeaseTable::make_room`]). Nobody waits for that, and what goes with them is granted
//!   meanwhile.
//!
//! Invariants: no two sessions hold incompatible leases on one inode; an inode that nobody holds or
//! uses is kept for [`COOL_DOWN_NS`] at most; there are never more leases and marks than [`Limits`]
//! says. Pure, and deterministic: nothing is iterated in hash order. A table may be one of many,
//! each of which has its own inodes.

mod room;

use room::Own;
use std::collections::{BTreeMap, VecDeque};
use types::{InodeId, PartitionId, SessionId};
pub use wire::Access;
use wire::{LeaseMode, Yield};

/// How long nobody gets a lease unasked on an inode that was recalled, nanoseconds. Without it, two
/// sessions that change the same directory would hand its lease to and fro with every change.
pub const COOL_DOWN_NS: u64 = 1_000_000_000;

/// Inodes that cool down at a time, in a table; beyond it, the oldest are forgotten early.
const MAX_COOLING: usize = 16_384;

/// How many leases and marks a table takes. At a limit nothing is granted; from seven eighths of it
/// on nothing is granted unasked, and from three quarters on old leases are recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of all sessions.
    pub total: usize,
    /// Of one session.
    pub per_session: usize,
}

/// How much a session has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Leases.
    pub leases: u64,
    /// Files that are open without a lease.
    pub in_use: u64,
}

/// A recall that has to be answered before something can go on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub struct Due {
    pub ino: InodeId,
    pub session: SessionId,
    pub number: u64,
}

/// Gives a recall its number within its session, and sends it on its way: session, inode, what may
/// be kept.
pub type Send<'a> = &'a mut dyn FnMut(SessionId, InodeId, Option<LeaseMode>) -> u64;

/// A lease that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// This one. `Shared` is granted for `Write` while others write, unless the session shares it
    /// with them already: then it asks for more.
    Mode(LeaseMode),
    /// `Write`, whatever others do.
    Alone,
}

/// Who asks for a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// The session.
    pub session: SessionId,
    /// Recalls of this session so far.
    pub recalls: u64,
    /// The time, in nanoseconds of a clock that never goes back.
    pub now_ns: u64,
    /// It answers recalls soon, so that its leases can make way for others.
    pub answers: bool,
}

/// What a session has of an inode.
#[derive(Clone, Copy, Debug)]
struct Holder {
    session: SessionId,
    mode: Option<LeaseMode>,
    /// A file of it is open there, whatever the lease.
    in_use: bool,
    /// The unanswered recall.
    recall: Option<Pending>,
    /// Recalls of the session when it was last granted something here.
    granted_at: u64,
    /// Its place among the session's leases by age; 0: none.
    place: u32,
    /// Times that it is passed over when its turn to be recalled for room comes.
    spared: u8,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u64,
    keep: Option<LeaseMode>,
    /// Something is in the way of somebody, who may wait for the answer.
    waited_for: bool,
    /// It was sent to have room.
    for_room: bool,
}

#[derive(Default)]
struct Entry {
    /// One or two as a rule.
    holders: Vec<Holder>,
    recalled_ns: Option<u64>,
    /// It has no name and is to be reclaimed when nobody holds or uses it any more.
    doomed: bool,
    /// It is a directory of which somebody has been the only user: who only looks leaves
    /// permissions of it to the holder, and nothing can be shared.
    is_directory: bool,
    /// Of the right to write that there is now; 0 while nobody has asked for it.
    epoch: u64,
}

/// Leases on the inodes of one shard.
pub struct LeaseTable {
    limits: Limits,
    inodes: BTreeMap<InodeId, Entry>,
    /// Holders in `inodes`, all and by session.
    total: usize,
    by_session: BTreeMap<SessionId, Own>,
    /// Those of them that are asked to go, to have room.
    leaving: usize,
    /// The last place that was given, and the session that was last asked for room.
    places: u32,
    turn: SessionId,
    /// Recalled inodes, by time.
    cooling: VecDeque<(u64, InodeId)>,
    /// Doomed inodes that nobody uses any more.
    abandoned: Vec<InodeId>,
}

impl LeaseTable {
    /// A table without leases.
    pub fn new(limits: Limits) -> LeaseTable {
        LeaseTable {
            limits,
            inodes: BTreeMap::new(),
            total: 0,
            by_session: BTreeMap::new(),
            leaving: 0,
            places: 0,
            turn: SessionId::default(),
            cooling: VecDeque::new(),
            abandoned: Vec::new(),
        }
    }

    /// Inodes that are known, those that cool down included.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// True when nobody holds or uses anything, and nothing cools down.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Grants `Read` unasked where that disturbs nobody. Returns what the session holds and may
    /// rely on: nothing while it is to give it up, and `Shared` is nothing to rely on.
    pub fn offer(&mut self, asker: Asker, ino: InodeId) -> Option<LeaseMode> {
        self.offer_or(asker, ino, (LeaseMode::Read, None))
    }

    /// The same of a directory. While it cools down, `Permissions` is granted: those who change its
    /// names leave that alone.
    pub fn offer_directory(&mut self, asker: Asker, ino: InodeId) -> Option<LeaseMode> {
        self.offer_or(asker, ino, (LeaseMode::Read, Some(LeaseMode::Permissions)))
    }

    /// The same where nobody is to know all names of the directory: `Permissions` at most.
    pub fn offer_permissions(&mut self, asker: Asker, ino: InodeId) -> Option<LeaseMode> {
        self.offer_or(asker, ino, (LeaseMode::Permissions, Some(LeaseMode::Permissions)))
    }

    fn offer_or(
        &mut self,
        asker: Asker,
        ino: InodeId,
        (mut offered, while_cooling): (LeaseMode, Option<LeaseMode>),
    ) -> Option<LeaseMode> {
        self.cool_down(asker.now_ns);
        let room = self.has_room_unasked(asker.session);
        match self.inodes.get_mut(&ino) {
            Some(entry) => {
                if entry.is_closed_to(asker.session) {
                    return None;
                }
                match entry.find(asker.session).map(|own| own.mode) {
                    Some(Some(LeaseMode::Shared)) => return None,
                    Some(Some(mode @ (LeaseMode::Read | LeaseMode::Write))) => {
                        return self.hold(asker, ino, mode);
                    }
                    Some(_) => {}
                    None if !room => return None,
                    None => {}
                }
                let shared = entry.others(asker.session).any(|other| !other.allows(LeaseMode::Read));
                if shared || entry.doomed {
                    return None;
                }
                if entry.recalled_ns.is_some() {
                    offered = while_cooling?;
                }
            }
            None if !room => return None,
            None => {}
        }
        self.hold(asker, ino, offered)
    }

    /// Grants `Write` on a directory. What others have of it is recalled, and what has to be waited
    /// for is added to `due`: then nothing is granted, and the wish is to be repeated. Where
    /// something of it was recalled a moment ago nobody is asked to give anything up.
    pub fn take_alone(
        &mut self,
        asker: Asker,
        ino: InodeId,
        send: Send<'_>,
        due: &mut Vec<Due>,
    ) -> Option<LeaseMode> {
        self.cool_down(asker.now_ns);
        let room = self.has_room_unasked(asker.session);
        let own = match self.inodes.get(&ino) {
            Some(entry) => {
                let is_taken = entry.others(asker.session).next().is_some();
                let is_hot = is_taken && entry.recalled_ns.is_some();
                if is_hot || entry.is_closed_to(asker.session) || entry.doomed {
                    return None;
                }
                entry.find(asker.session).copied()
            }
            None => None,
        };
        if own.is_none() && !room {
            return None;
        }
        let before = due.len();
        self.make_way(asker, ino, Access::Change, send, due);
        let is_used = |entry: &Entry| entry.others(asker.session).next().is_some();
        if due.len() > before || self.inodes.get(&ino).is_some_and(is_used) {
            return None;
        }
        let mode = self.hold(asker, ino, LeaseMode::Write)?;
        if let Some(entry) = self.inodes.get_mut(&ino) {
            entry.is_directory = true;
        }
        Some(mode)
    }

    /// Asks for a lease. What is in the way is recalled, and what has to be waited for is added to
    /// `due`: then nothing is granted, and the wish is to be repeated.
    ///
    /// Never waits for the session itself: while it is to give its lease up, or at a limit, nothing
    /// is granted.
    pub fn acquire(
        &mut self,
        asker: Asker,
        ino: InodeId,
        wish: Wish,
        send: Send<'_>,
        due: &mut Vec<Due>,
    ) -> Option<LeaseMode> {
        self.cool_down(asker.now_ns);
        let wished = match wish {
            Wish::Mode(mode) => mode,
            Wish::Alone => LeaseMode::Write,
        };
        let Some(entry) = self.inodes.get_mut(&ino) else {
            return self.hold(asker, ino, wished);
        };
        let own = entry.holder(asker.session).copied();
        if own.is_some_and(|own| own.recall.is_some()) {
            return None;
        }
        let held = own.and_then(|own| own.mode);
        let wanted = joined(held, wished);
        let alone = wish == Wish::Alone || (wished == LeaseMode::Write && held == Some(LeaseMode::Shared));
        let shares = !alone && wanted == LeaseMode::Write && entry.others(asker.session).any(Holder::writes);
        let mode = if shares { LeaseMode::Shared } else { wanted };
        let before = due.len();
        entry.make_way((asker.session, ino), |held| in_the_way_of(held, mode), send, due);
        // Who waits for the answer to a recall must not find somebody new there then.
        for other in entry.others(asker.session) {
            if let Some(pending) = other.recall
                && pending.waited_for
                && pending.keep != Some(mode)
            {
                due.push(Due { ino, session: other.session, number: pending.number });
            }
        }
        if due.len() > before {
            self.note_recall(ino, asker.now_ns);
            return None;
        }
        self.hold(asker, ino, mode)
    }

    /// Recalls what other sessions hold in the way of a command, and adds what has to be waited for
    /// to `due`.
    pub fn make_way(
        &mut self,
        asker: Asker,
        ino: InodeId,
        access: Access,
        send: Send<'_>,
        due: &mut Vec<Due>,
    ) {
        let Some(entry) = self.inodes.get(&ino) else { return };
        match access {
            Access::Look if entry.is_directory => {
                self.clear(asker, ino, in_the_way_of_a_look_into, send, due)
            }
            _ => self.clear(asker, ino, |held| in_the_way(held, access), send, due),
        }
    }

    /// The same for a command that adds or removes names of a directory, and changes nothing else
    /// of it but times, size and links.
    pub fn make_way_for_names(&mut self, asker: Asker, ino: InodeId, send: Send<'_>, due: &mut Vec<Due>) {
        self.clear(asker, ino, in_the_way_of_names, send, due);
    }

    fn clear(
        &mut self,
        asker: Asker,
        ino: InodeId,
        obstacle: impl Fn(LeaseMode) -> Option<Option<LeaseMode>>,
        send: Send<'_>,
        due: &mut Vec<Due>,
    ) {
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        let before = due.len();
        entry.make_way((asker.session, ino), obstacle, send, due);
        if due.len() > before {
            self.note_recall(ino, asker.now_ns);
        }
    }

    /// True when another session writes the inode, so that nobody else knows its size.
    pub fn is_written_elsewhere(&self, session: SessionId, ino: InodeId) -> bool {
        self.inodes.get(&ino).is_some_and(|entry| entry.others(session).any(Holder::writes))
    }

    /// True when a session may write the inode.
    pub fn is_written_by(&self, session: SessionId, ino: InodeId) -> bool {
        self.inodes.get(&ino).and_then(|entry| entry.find(session)).is_some_and(Holder::writes)
    }

    /// The epoch of an inode: a number that those who use it have in common, and that is a larger
    /// one whenever the right to write has passed on since, or has been given up. `fresh`: a number
    /// larger than all before.
    ///
    /// It stays when who had the right keeps less of it at a recall, and when one of several gives
    /// it up so: a session says so when nothing of what it did is under way any more.
    pub fn epoch(&mut self, ino: InodeId, fresh: impl FnOnce() -> u64) -> u64 {
        let Some(entry) = self.inodes.get_mut(&ino) else { return fresh() };
        if entry.epoch == 0 {
            entry.epoch = fresh();
        }
        entry.epoch
    }

    /// Lets the epoch of an inode be another one from now on, if it isn't above this.
    pub fn outdate(&mut self, ino: InodeId, past: u64) {
        if let Some(entry) = self.inodes.get_mut(&ino)
            && entry.epoch <= past
        {
            entry.epoch = 0;
        }
    }

    /// Whether a recall is still unanswered.
    pub fn is_due(&self, due: &Due) -> bool {
        let holder = self.inodes.get(&due.ino).and_then(|entry| entry.find(due.session));
        holder.and_then(|holder| holder.recall).is_some_and(|pending| pending.number == due.number)
    }

    /// Notes that a session has a file of the inode open, if it has no lease that says so. False at
    /// a limit.
    pub fn mark_in_use(&mut self, asker: Asker, ino: InodeId) -> bool {
        let has_room = self.has_room(asker.session);
        match self.inodes.get_mut(&ino).and_then(|entry| entry.holder(asker.session)) {
            Some(own) => {
                own.in_use = true;
                own.granted_at = asker.recalls;
            }
            None if !has_room => return false,
            None => self.add(asker, ino, Holder { in_use: true, ..Holder::new(asker) }),
        }
        true
    }

    /// Takes the answer to a recall. One to a recall that was answered or replaced changes nothing
    /// but whether the inode is in use.
    pub fn yielded(&mut self, session: SessionId, answer: &Yield, now_ns: u64) {
        let Some(entry) = self.inodes.get_mut(&answer.ino) else { return };
        let Some(own) = entry.holder(session) else { return };
        // An answer can't tell of a file that was opened after its recall.
        own.in_use = answer.in_use || (own.in_use && own.granted_at >= answer.number);
        if let Some(pending) = own.recall
            && pending.number == answer.number
        {
            own.recall = None;
            let ends = own.mode == Some(LeaseMode::Write) && pending.keep.is_none();
            own.mode = pending.keep;
            if ends {
                entry.epoch = 0;
            }
            if pending.for_room {
                self.has_left(session);
            }
            if pending.waited_for {
                self.note_recall(answer.ino, now_ns);
            }
        }
        self.forget_holders(answer.ino, |holder| {
            holder.session == session && holder.mode.is_none() && !holder.in_use
        });
    }

    /// A session gives up all that it has of an inode, unless it was granted something after it had
    /// seen `seen` recalls: what it says is older than that.
    pub fn release(&mut self, session: SessionId, ino: InodeId, seen: u64) {
        self.forget_holders(ino, |holder| holder.session == session && holder.granted_at <= seen);
    }

    /// Drops a session's use of an inode without a name. True when nobody else has one: then it can
    /// be deleted. Else it is [abandoned](LeaseTable::take_abandoned) some time.
    pub fn reclaim(&mut self, session: SessionId, ino: InodeId) -> bool {
        let Some(entry) = self.inodes.get_mut(&ino) else { return true };
        let is_free = entry.others(session).next().is_none();
        entry.doomed = !is_free;
        self.forget_holders(ino, |holder| holder.session == session);
        is_free
    }

    /// Ends a session; returns the inodes of which it had something.
    pub fn end_session(&mut self, session: SessionId) -> Vec<InodeId> {
        self.leave(session, |_| true)
    }

    /// Takes what a session has of some inodes; returns of which it had something.
    pub fn leave(&mut self, session: SessionId, of: impl Fn(InodeId) -> bool) -> Vec<InodeId> {
        if !self.by_session.contains_key(&session) {
            return Vec::new();
        }
        let held = self.inodes.iter().filter(|(ino, entry)| of(**ino) && entry.find(session).is_some());
        let held: Vec<InodeId> = held.map(|(ino, _)| *ino).collect();
        for &ino in &held {
            self.forget_holders(ino, |holder| holder.session == session);
        }
        held
    }

    /// Gives a session what another one may write of an inode, or `Write` where nobody has
    /// anything. False where neither is so, or at a limit. Who waits for `from` is to look again.
    pub fn pass_on(&mut self, from: SessionId, to: Asker, ino: InodeId) -> bool {
        let Some(entry) = self.inodes.get(&ino) else {
            return self.hold(to, ino, LeaseMode::Write).is_some();
        };
        let (own, held) = (entry.find(to.session).copied(), entry.find(from).copied());
        if own.is_some_and(|own| own.writes()) {
            self.forget_holders(ino, |holder| holder.session == from);
            return true;
        }
        let is_free = || entry.others(to.session).all(|other| other.mode.is_none());
        let mode = match held.and_then(|held| held.mode) {
            Some(mode @ (LeaseMode::Write | LeaseMode::Shared)) => mode,
            None if is_free() => LeaseMode::Write,
            _ => return false,
        };
        if self.hold(to, ino, mode).is_none() {
            return false;
        }
        self.forget_holders(ino, |holder| holder.session == from);
        true
    }

    /// Forgets everything of a partition; returns the inodes of which something was known.
    pub fn forget_partition(&mut self, partition: PartitionId) -> Vec<InodeId> {
        let of_it = |ino: &&InodeId| ino.partition() == partition;
        let inodes: Vec<InodeId> = self.inodes.keys().filter(of_it).copied().collect();
        for &ino in &inodes {
            if let Some(entry) = self.inodes.get_mut(&ino) {
                (entry.doomed, entry.recalled_ns) = (false, None);
            }
            self.forget_holders(ino, |_| true);
        }
        inodes
    }

    /// Adds up what each session has: leases, and files that are open without one.
    pub fn tally(&self, into: &mut BTreeMap<SessionId, Tally>) {
        for holder in self.inodes.values().flat_map(|entry| &entry.holders) {
            let tally = into.entry(holder.session).or_default();
            tally.leases += u64::from(holder.mode.is_some());
            tally.in_use += u64::from(holder.mode.is_none() && holder.in_use);
        }
    }

    /// Takes the inodes that were to be reclaimed and are free for it now.
    pub fn take_abandoned(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.abandoned)
    }

    fn hold(&mut self, asker: Asker, ino: InodeId, mode: LeaseMode) -> Option<LeaseMode> {
        let wrote = self.inodes.get(&ino).is_some_and(|entry| entry.holders.iter().any(Holder::writes));
        let has_room = self.has_room(asker.session);
        match self.inodes.get_mut(&ino).and_then(|entry| entry.holder(asker.session)) {
            Some(own) => {
                own.mode = Some(mode);
                own.granted_at = asker.recalls;
            }
            None if !has_room => return None,
            None => self.add(asker, ino, Holder { mode: Some(mode), ..Holder::new(asker) }),
        }
        if let Some(entry) = self.inodes.get_mut(&ino)
            && mode != LeaseMode::Read
            && !wrote
        {
            entry.epoch = 0;
        }
        if asker.answers {
            self.note_use(asker.session, ino);
        }
        Some(mode)
    }

    fn add(&mut self, asker: Asker, ino: InodeId, holder: Holder) {
        let entry = self.inodes.entry(ino).or_default();
        if entry.holders.capacity() == 0 {
            entry.holders.reserve_exact(1);
        }
        entry.holders.push(holder);
        self.total += 1;
        self.by_session.entry(asker.session).or_default().holders += 1;
    }

    /// Removes holders of an inode, and the inode if nothing is left of it.
    fn forget_holders(&mut self, ino: InodeId, is_gone: impl Fn(&Holder) -> bool) {
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        entry.holders.retain(|holder| {
            if !is_gone(holder) {
                return true;
            }
            if holder.writes() {
                entry.epoch = 0;
            }
            let leaves = holder.recall.is_some_and(|pending| pending.for_room);
            self.total -= 1;
            self.leaving -= usize::from(leaves);
            if let Some(own) = self.by_session.get_mut(&holder.session) {
                own.holders -= 1;
                own.leaving -= usize::from(leaves);
                if own.holders == 0 {
                    self.by_session.remove(&holder.session);
                }
            }
            false
        });
        if !entry.holders.is_empty() {
            return;
        }
        if std::mem::take(&mut entry.doomed) {
            self.abandoned.push(ino);
        }
        if entry.recalled_ns.is_none() {
            self.inodes.remove(&ino);
        }
    }

    fn note_recall(&mut self, ino: InodeId, now_ns: u64) {
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        // One note for each time: a later one is in the queue once the first is due.
        if entry.recalled_ns.replace(now_ns) != Some(now_ns) {
            self.cooling.push_back((now_ns, ino));
        }
        if self.cooling.len() > MAX_COOLING {
            self.forget_oldest();
        }
    }

    /// Forgets the recalls that are long enough ago.
    fn cool_down(&mut self, now_ns: u64) {
        while self.cooling.front().is_some_and(|(then, _)| now_ns.saturating_sub(*then) >= COOL_DOWN_NS) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((then, ino)) = self.cooling.pop_front() else { return };
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        if entry.recalled_ns == Some(then) {
            entry.recalled_ns = None;
            if entry.holders.is_empty() {
                self.inodes.remove(&ino);
            }
        }
    }
}

impl Holder {
    fn new(asker: Asker) -> Holder {
        Holder {
            session: asker.session,
            mode: None,
            in_use: false,
            recall: None,
            granted_at: asker.recalls,
            place: 0,
            spared: 0,
        }
    }

    fn writes(&self) -> bool {
        matches!(self.mode, Some(LeaseMode::Shared | LeaseMode::Write))
    }

    /// Whether another session may hold `mode` meanwhile.
    fn allows(&self, mode: LeaseMode) -> bool {
        self.mode.is_none_or(|held| in_the_way_of(held, mode).is_none())
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

    /// Whether somebody may wait for an answer to a recall, or the session has yet to give one.
    fn is_closed_to(&self, session: SessionId) -> bool {
        let closes = |holder: &Holder, pending: Pending| pending.waited_for || holder.session == session;
        self.holders.iter().any(|holder| holder.recall.is_some_and(|pending| closes(holder, pending)))
    }

    /// Recalls what others hold in the way. `obstacle`: what may be kept of a mode, where that is
    /// less.
    fn make_way(
        &mut self,
        (session, ino): (SessionId, InodeId),
        obstacle: impl Fn(LeaseMode) -> Option<Option<LeaseMode>>,
        send: Send<'_>,
        due: &mut Vec<Due>,
    ) {
        for holder in self.holders.iter_mut().filter(|holder| holder.session != session) {
            let Some(keep) = holder.mode.and_then(&obstacle) else { continue };
            let number = match &mut holder.recall {
                // What the unanswered recall leaves is not in the way any more.
                Some(pending) if pending.keep.and_then(&obstacle).is_none() => {
                    pending.waited_for = true;
                    pending.number
                }
                replaced => {
                    let keep = replaced.map_or(keep, |pending| pending.keep.and_then(&obstacle).flatten());
                    let number = send(holder.session, ino, keep);
                    holder.recall = Some(Pending { number, keep, waited_for: true, for_room: false });
                    number
                }
            };
            due.push(Due { ino, session: holder.session, number });
        }
    }
}

/// The mode that covers both.
fn joined(held: Option<LeaseMode>, wish: LeaseMode) -> LeaseMode {
    match held {
        None | Some(LeaseMode::Permissions) => wish,
        Some(held) if held == wish || wish == LeaseMode::Permissions => held,
        Some(_) => LeaseMode::Write,
    }
}

/// What may be kept of a lease in the way of a command; `None` for one that isn't.
fn in_the_way(held: LeaseMode, access: Access) -> Option<Option<LeaseMode>> {
    match (access, held) {
        (Access::Look, LeaseMode::Write) => Some(Some(LeaseMode::Shared)),
        (Access::Look, _) => None,
        (Access::Share, held) => in_the_way_of(held, LeaseMode::Shared),
        (Access::Change, _) => Some(None),
    }
}

/// The same of a command that looks into a directory: who has been alone there may go on to know
/// who may do what in it.
fn in_the_way_of_a_look_into(held: LeaseMode) -> Option<Option<LeaseMode>> {
    (held == LeaseMode::Write).then_some(Some(LeaseMode::Permissions))
}

/// The same of a command that changes only names.
fn in_the_way_of_names(held: LeaseMode) -> Option<Option<LeaseMode>> {
    match held {
        LeaseMode::Permissions => None,
        LeaseMode::Read => Some(Some(LeaseMode::Permissions)),
        LeaseMode::Shared | LeaseMode::Write => Some(None),
    }
}

/// What may be kept of a lease in the way of another; `None` for one that isn't.
fn in_the_way_of(held: LeaseMode, wanted: LeaseMode) -> Option<Option<LeaseMode>> {
    use LeaseMode::{Permissions, Read, Shared, Write};
    match (wanted, held) {
        (Read | Permissions, Read | Permissions) | (Shared, Shared) => None,
        (Read | Shared, Write) => Some(Some(wanted)),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests;
