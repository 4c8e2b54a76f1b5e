//! Names in a directory that this session has to itself, while others use the directory, too.
//!
//! Before a kernel makes a name it looks it up, and learns that there is none. In a directory that
//! others fill as well only the service knows that, unless nobody else makes names like these:
//! programs that share a directory mostly number their files after something of their own
//! (`rank3.00017`). A session that does so asks for all names that begin like the last few
//! ([`wire::MetaOp::Reserve`]), lists those that there are, and knows from then on which there
//! aren't.
//!
//! # Why a name that is absent here is absent
//!
//! - The lease on the range is held since before the names were listed, so that since then only
//!   this session has added any, and an entry that stays is in every list.
//! - A name is noted before a request leaves that may add it, and names are never taken out again.
//!   Looking for one that was removed costs a question to the service.
//! - What was on its way when the range began, or was never answered and may still be done, is
//!   noted as well.
//! - Names are noted as fingerprints. Two of one fingerprint only make a question necessary.
//!
//! A range in which nothing is made any more is given back soon: while it is held, others can keep
//! nothing of the directory but its permissions.

use crate::Client;
use crate::births::{Births, FEW_NUMBERS, Numbered};
use crate::complete::{added, fingerprint};
use crate::habit::{Habit, Rest};
use crate::lease::{Asked, Leases};
use crate::numbers::{REUSED_AFTER, is_in_doubt};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Credentials, Errno, Error, HashMap, HashSet, InodeId, Result};
use wire::{LeaseMode, MetaOp, MetaReply};

/// How long a range is kept in which nothing is made, nanoseconds, and how often that is looked at.
const IDLE_NS: u64 = 2_000_000_000;
const SWEEP: Duration = Duration::from_secs(1);
/// Directories of which something is known. Beyond it all is forgotten where nothing is held.
const MAX_DIRECTORIES: usize = 1024;
/// Ranges of a directory, as many as a service grants, and beginnings of names that are counted
/// there.
const MAX_RANGES: usize = 128;
/// Names of all ranges, some 16 bytes each. With more, the largest one is given back.
const MAX_NAMES: usize = 1 << 20;
/// Entries of a page of a list, and pages: in larger directories listing them costs more than it
/// saves.
const PAGE: u32 = 2048;
const MAX_PAGES: u32 = 128;
/// Requests of the last hour that were never answered and may add names. Beyond it nothing is asked
/// for.
const MAX_DOUBTS: usize = 4096;

struct Range {
    prefix: Bytes,
    /// The number on which the lease is.
    lease: InodeId,
    /// As if it had been asked for then: the lease was held.
    asked: Asked,
    since_ns: u64,
    /// When a name was last added.
    used_ns: u64,
    /// Fingerprints of all names that there are, once that is so, and of others.
    names: HashSet<u64>,
    is_complete: bool,
    /// What files are that are made here; nothing while the directory is being changed.
    births: Option<Births>,
}

#[derive(Default)]
struct Directory {
    ranges: Vec<Range>,
    /// How names were made lately; the last one was used last.
    habits: Vec<(Bytes, Habit)>,
    /// The service is being asked for a range.
    is_asked_for: bool,
    /// Not to be asked for one before.
    rest: Rest,
}

impl Directory {
    /// Those ranges that are still held.
    fn held(&mut self, leases: &Leases) -> &mut Vec<Range> {
        let is_held = |range: &Range| leases.vouches(range.asked, range.lease) == Some(LeaseMode::Write);
        let lost = self.ranges.extract_if(.., |range| !is_held(range)).map(|range| range.since_ns).min();
        if let Some(since_ns) = lost {
            self.rest.begin_after(since_ns);
        }
        &mut self.ranges
    }

    fn range(&mut self, lease: InodeId) -> Option<&mut Range> {
        self.ranges.iter_mut().find(|range| range.lease == lease)
    }

    /// Counts a name that is made; true when it is one of many.
    fn is_habit(&mut self, prefix: &[u8], now_ns: u64) -> bool {
        let known = self.habits.iter().position(|(other, _)| other == prefix);
        let (prefix, mut habit) = match known {
            Some(at) => self.habits.remove(at),
            None => (Bytes::copy_from_slice(prefix), Habit::default()),
        };
        let is_one = habit.note(now_ns);
        self.habits.push((prefix, habit));
        if self.habits.len() > MAX_RANGES {
            self.habits.remove(0);
        }
        is_one
    }
}

#[derive(Default)]
struct Adds {
    next: u64,
    /// What may be added by requests that aren't answered.
    unanswered: HashMap<u64, Add>,
}

struct Add {
    dir: InodeId,
    name: u64,
    since_ns: u64,
}

/// All ranges of a session.
#[derive(Default)]
pub(crate) struct Ranges {
    directories: Mutex<HashMap<InodeId, Directory>>,
    /// The directories of all ranges on which there are leases.
    of_leases: Mutex<HashMap<InodeId, InodeId>>,
    /// The session has had a range.
    is_used: AtomicBool,
    is_swept: AtomicBool,
    adds: Mutex<Adds>,
}

/// A name that may be added, until it is known what came of it.
pub(crate) struct Adding(u64);

impl Ranges {
    /// A request is about to leave that may add a name, or changes what files of a directory will
    /// be.
    pub(crate) fn sending(&self, op: &MetaOp) -> Option<Adding> {
        match op {
            MetaOp::Setattr { ino, .. }
            | MetaOp::SetXattr { ino, .. }
            | MetaOp::RemoveXattr { ino, .. }
            | MetaOp::SetPattern { dir: ino, .. }
                if self.is_used.load(Ordering::Acquire) =>
            {
                if let Some(directory) = self.directories.lock().get_mut(ino) {
                    directory.ranges.iter_mut().for_each(|range| range.births = None);
                }
                None
            }
            op => added(op).map(|(dir, name)| self.adding(dir, name)),
        }
    }

    /// A name may be there from now on.
    pub(crate) fn adding(&self, dir: InodeId, name: &[u8]) -> Adding {
        let id = {
            let mut adds = self.adds.lock();
            adds.next += 1;
            let id = adds.next;
            let since_ns = rt::monotonic_ns();
            adds.unanswered.insert(id, Add { dir, name: fingerprint(name), since_ns });
            id
        };
        // A range that begins after this finds it among those.
        self.noting(dir, name);
        Adding(id)
    }

    /// This is what came of it. Without this, it may still come.
    pub(crate) fn added<T>(&self, adding: &Adding, outcome: &Result<T>) {
        if !is_in_doubt(outcome) {
            self.adds.lock().unanswered.remove(&adding.0);
        }
    }

    fn noting(&self, dir: InodeId, name: &[u8]) {
        if !self.is_used.load(Ordering::Acquire) {
            return;
        }
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&dir) else { return };
        for range in directory.ranges.iter_mut().filter(|range| name.starts_with(&range.prefix)) {
            range.names.insert(fingerprint(name));
            range.used_ns = rt::monotonic_ns();
        }
    }

    /// When it was last known that the directory surely has no such name; `None` if it may have
    /// one.
    pub(crate) fn lacks(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<Asked> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut directories = self.directories.lock();
        let ranges = directories.get_mut(&dir)?.held(leases);
        let range = ranges.iter().find(|range| range.is_complete && name.starts_with(&range.prefix))?;
        (!range.names.contains(&fingerprint(name))).then_some(range.asked)
    }

    /// A number for a file that may be promised, and the beginning of its name.
    pub(crate) fn number_for(
        &self,
        leases: &Leases,
        (dir, name): (InodeId, &[u8]),
        who: Credentials,
    ) -> Option<(Numbered, Bytes)> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut directories = self.directories.lock();
        let directory = directories.get_mut(&dir)?;
        let ranges = directory.held(leases).iter_mut();
        let range = ranges.into_iter().find(|range| range.is_complete && name.starts_with(&range.prefix))?;
        let births = range.births.as_mut().filter(|births| births.lets(who))?;
        if range.names.contains(&fingerprint(name)) {
            return None;
        }
        let numbered = births.take_number(range.lease, range.asked)?;
        let prefix = range.prefix.clone();
        let are_few = numbered.are_few && !directory.is_asked_for;
        directory.is_asked_for |= are_few;
        Some((Numbered { are_few, ..numbered }, prefix))
    }

    /// The directory of which this is a range.
    pub(crate) fn directory_of(&self, lease: InodeId) -> Option<InodeId> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        self.of_leases.lock().get(&lease).copied()
    }

    /// There is no lease on it any more.
    pub(crate) fn let_go(&self, lease: InodeId) {
        if self.is_used.load(Ordering::Acquire) {
            self.of_leases.lock().remove(&lease);
        }
    }

    /// A name was made; the beginning of all those that are to be asked for.
    fn note_made(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<Bytes> {
        let prefix = prefix_of(name)?;
        let now_ns = rt::monotonic_ns();
        let mut directories = self.directories.lock();
        if directories.len() >= MAX_DIRECTORIES && !directories.contains_key(&dir) {
            directories.retain(|_, directory| !directory.ranges.is_empty() || directory.is_asked_for);
        }
        let directory = directories.entry(dir).or_default();
        let is_known = |range: &Range| name.starts_with(&range.prefix) && range.births.is_some();
        let wanted = directory.is_habit(prefix, now_ns)
            && !directory.held(leases).iter().any(is_known)
            && directory.ranges.len() < MAX_RANGES
            && !directory.is_asked_for
            && directory.rest.is_over(now_ns);
        directory.is_asked_for |= wanted;
        wanted.then(|| Bytes::copy_from_slice(prefix))
    }

    /// The session has a range, or has been told more of one. True when it has it since now: which
    /// names there are is to be found out.
    fn begin(
        &self,
        leases: &Leases,
        (dir, prefix): (InodeId, &Bytes),
        (lease, asked): (InodeId, Asked),
        births: Option<Births>,
    ) -> Result<bool> {
        self.is_used.store(true, Ordering::Release);
        self.of_leases.lock().insert(lease, dir);
        let mut directories = self.directories.lock();
        let directory = directories.entry(dir).or_default();
        if let Some(range) = directory.held(leases).iter_mut().find(|range| range.lease == lease) {
            range.births = match (births, range.births.take()) {
                (Some(births), Some(before)) => Some(births.after(before)),
                (births, _) => births,
            };
            return Ok(!range.is_complete);
        }
        let now_ns = rt::monotonic_ns();
        let mut adds = self.adds.lock();
        let is_over = |add: &Add| now_ns.saturating_sub(add.since_ns) > REUSED_AFTER.as_nanos() as u64;
        adds.unanswered.retain(|_, add| !is_over(add));
        if adds.unanswered.len() > MAX_DOUBTS {
            return Err(Error::new(Errno::EBUSY, "too many requests were never answered"));
        }
        let there = adds.unanswered.values().filter(|add| add.dir == dir);
        directory.ranges.push(Range {
            prefix: prefix.clone(),
            lease,
            asked,
            since_ns: now_ns,
            used_ns: now_ns,
            names: there.map(|add| add.name).collect(),
            is_complete: false,
            births,
        });
        Ok(true)
    }

    /// These are there; false when there are too many, or the range is gone.
    fn found<'a>(&self, dir: InodeId, lease: InodeId, names: impl Iterator<Item = &'a Bytes>) -> bool {
        let mut directories = self.directories.lock();
        let Some(range) = directories.get_mut(&dir).and_then(|directory| directory.range(lease)) else {
            return false;
        };
        range
            .names
            .extend(names.filter(|name| name.starts_with(&range.prefix)).map(|name| fingerprint(name)));
        range.names.len() <= MAX_NAMES
    }

    /// The service has been asked for a range, and its names are listed.
    fn asked(&self, leases: &Leases, dir: InodeId, listed: Option<InodeId>) {
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&dir) else { return };
        directory.is_asked_for = false;
        let range =
            listed.and_then(|lease| directory.held(leases).iter_mut().find(|range| range.lease == lease));
        match range {
            Some(range) => range.is_complete = true,
            None => directory.rest.begin(),
        }
    }

    fn forget(&self, dir: InodeId, lease: InodeId) {
        if let Some(directory) = self.directories.lock().get_mut(&dir) {
            directory.ranges.retain(|range| range.lease != lease);
        }
    }

    /// Takes out those that are of no use any more. Returns the leases under which nothing is
    /// known, and whether there are any at all.
    fn take_idle(&self, leases: &Leases) -> (Vec<InodeId>, bool) {
        let now_ns = rt::monotonic_ns();
        let mut directories = self.directories.lock();
        for directory in directories.values_mut() {
            directory.held(leases).retain(|range| now_ns.saturating_sub(range.used_ns) < IDLE_NS);
        }
        let mut kept: Vec<(usize, InodeId)> = {
            let ranges = directories.values().flat_map(|directory| &directory.ranges);
            ranges.map(|range| (range.names.len(), range.lease)).collect()
        };
        kept.sort_unstable();
        while kept.iter().map(|(names, _)| names).sum::<usize>() > MAX_NAMES {
            kept.pop();
        }
        let kept: HashSet<InodeId> = kept.into_iter().map(|(_, lease)| lease).collect();
        for directory in directories.values_mut() {
            directory.ranges.retain(|range| kept.contains(&range.lease));
        }
        let mut of_leases = self.of_leases.lock();
        of_leases.retain(|lease, _| leases.mode(*lease).is_some());
        let idle = of_leases.keys().filter(|lease| !kept.contains(lease)).copied().collect();
        (idle, !of_leases.is_empty())
    }
}

/// The beginning that a name has in common with others of its kind: what comes before its last
/// number.
fn prefix_of(name: &[u8]) -> Option<&[u8]> {
    let last = name.iter().rposition(u8::is_ascii_digit)?;
    let digits = name[..last].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    Some(&name[..last - digits]).filter(|prefix| !prefix.is_empty())
}

impl Client {
    /// Something was made in a directory. Who makes many whose names begin alike, and has to ask
    /// for each whether it is there, is to have them alone.
    pub(crate) fn note_made_alike(&self, credentials: Credentials, dir: InodeId, name: &[u8]) {
        if self.leases.is_alone() || self.complete.has(dir) {
            return;
        }
        let Some(prefix) = self.ranges.note_made(&self.leases, dir, name) else { return };
        self.ask_for_range(credentials, dir, prefix, FEW_NUMBERS);
    }

    /// Asks for a range, or for more numbers of one.
    pub(crate) fn ask_for_range(&self, credentials: Credentials, dir: InodeId, prefix: Bytes, count: u32) {
        let Some(client) = self.myself.upgrade() else { return };
        rt::spawn(async move {
            let listed = client.take_range(credentials, (dir, &prefix), count).await;
            if let Err(error) = &listed {
                tracing::trace!(ino = %dir, ?prefix, %error, "names of a directory that this session can't have alone");
            }
            client.ranges.asked(&client.leases, dir, listed.ok());
            client.sweep_ranges();
        });
    }

    async fn take_range(
        &self,
        credentials: Credentials,
        (dir, prefix): (InodeId, &Bytes),
        count: u32,
    ) -> Result<InodeId> {
        let answer =
            self.ask_for(credentials, MetaOp::Reserve { dir, count, prefix: prefix.clone() }).await?;
        // Before it is looked whether the lease is held: then it is held since.
        let now = self.leases.asking();
        let refused = || Error::new(Errno::EBUSY, "the service doesn't grant it");
        let MetaReply::Reserved { range: Some(lease), .. } = answer.reply else { return Err(refused()) };
        if self.leases.vouches(answer.asked, lease) != Some(LeaseMode::Write) {
            return Err(refused());
        }
        self.promises.begin_use();
        let births = Births::of(&answer.reply);
        let listed = match self.ranges.begin(&self.leases, (dir, prefix), (lease, now), births) {
            Ok(true) => self.list_range(credentials, (dir, prefix), lease).await,
            Ok(false) => Ok(()),
            Err(refused) => Err(refused),
        };
        if listed.is_err() {
            self.ranges.forget(dir, lease);
            self.inodes.let_go(lease);
        }
        listed.map(|()| lease)
    }

    async fn list_range(
        &self,
        credentials: Credentials,
        (dir, prefix): (InodeId, &Bytes),
        lease: InodeId,
    ) -> Result<()> {
        let mut cookie = 0;
        for _ in 0..MAX_PAGES {
            let prefix = prefix.clone();
            let list = MetaOp::Readdir { dir, cookie, limit: PAGE, attributes: false, prefix };
            let reply = self.ask_for(credentials, list).await?.reply;
            let MetaReply::Directory { entries, end, .. } = reply else {
                return Err(crate::unexpected(reply));
            };
            if !self.ranges.found(dir, lease, entries.iter().map(|entry| &entry.name)) {
                break;
            }
            match entries.last() {
                Some(last) if !end => cookie = last.cookie,
                _ => return Ok(()),
            }
        }
        Err(Error::new(Errno::E2BIG, "there are too many names"))
    }

    /// Has ranges given back in which nothing is made any more.
    fn sweep_ranges(&self) {
        let Some(client) = self.myself.upgrade() else { return };
        if self.ranges.is_swept.swap(true, Ordering::AcqRel) {
            return;
        }
        rt::spawn(client.sweep_ranges_until_none());
    }

    async fn sweep_ranges_until_none(self: Arc<Client>) {
        while !self.is_over() {
            rt::sleep(SWEEP).await;
            let (idle, are_any) = self.ranges.take_idle(&self.leases);
            // It is looked at again as long as something is promised there.
            idle.into_iter().for_each(|lease| self.inodes.let_go(lease));
            if are_any {
                continue;
            }
            self.ranges.is_swept.store(false, Ordering::Release);
            // One that came in between has found somebody who sweeps.
            if self.ranges.of_leases.lock().is_empty() || self.ranges.is_swept.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::habit::HABIT;
    use types::NodeId;
    use wire::{Grant, MetaResponse, Recall};

    const HOME: NodeId = NodeId(1);
    const DIR: InodeId = InodeId(9);
    const LEASE: InodeId = InodeId(100);

    fn granted(leases: &Leases) {
        let grants = vec![Grant { ino: LEASE, mode: LeaseMode::Write }];
        leases.take_grants(leases.asking(), HOME, &MetaResponse { grants, ..MetaReply::Unit.into() });
    }

    fn begun(ranges: &Ranges, leases: &Leases) {
        granted(leases);
        let prefix = Bytes::from_static(b"a.");
        assert!(ranges.begin(leases, (DIR, &prefix), (LEASE, leases.asking()), None).unwrap());
    }

    fn lacks(ranges: &Ranges, leases: &Leases, name: &str) -> bool {
        ranges.lacks(leases, DIR, name.as_bytes()).is_some()
    }

    #[test]
    fn a_prefix_is_what_comes_before_the_last_number() {
        for (name, prefix) in [
            ("rank3.00017", Some("rank3.")),
            ("img_0001.jpg", Some("img_")),
            ("0-17", Some("0-")),
            ("17", None),
            ("readme", None),
            ("", None),
            ("x9", Some("x")),
        ] {
            assert_eq!(prefix_of(name.as_bytes()), prefix.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn a_name_is_absent_only_once_all_are_listed_and_until_it_may_be_there() {
        let (ranges, leases) = (Ranges::default(), Leases::new(false));
        let (_, answered) = (ranges.adding(DIR, b"a.0"), ranges.adding(DIR, b"a.1"));
        ranges.added(&answered, &Ok(()));
        begun(&ranges, &leases);
        assert!(!lacks(&ranges, &leases, "a.2"), "not listed yet");
        assert!(ranges.found(DIR, LEASE, [Bytes::from_static(b"a.1"), Bytes::from_static(b"b.3")].iter()));
        let meanwhile = ranges.adding(DIR, b"a.5");
        ranges.asked(&leases, DIR, Some(LEASE));
        assert!(lacks(&ranges, &leases, "a.2") && !lacks(&ranges, &leases, "b.2"));
        assert!(!lacks(&ranges, &leases, "a.1"), "it is there");
        assert!(!lacks(&ranges, &leases, "a.0"), "nobody has said that it isn't made");
        assert!(!lacks(&ranges, &leases, "a.5"));
        ranges.added(&meanwhile, &Ok(()));
        assert!(!lacks(&ranges, &leases, "a.5"));
        let refused = ranges.adding(DIR, b"a.2");
        ranges.added::<()>(&refused, &Err(Errno::EEXIST.into()));
        assert!(!lacks(&ranges, &leases, "a.2"));
        leases.close(HOME, &Recall { number: 1, ino: LEASE, keep: None });
        assert!(!lacks(&ranges, &leases, "a.7"), "others may be let in");
        leases.closed(LEASE, None);
        granted(&leases);
        assert!(!lacks(&ranges, &leases, "a.7"), "what was known is forgotten");
    }

    #[test]
    fn what_was_never_answered_is_forgotten_when_it_can_not_be_done_any_more() {
        let run = async {
            let (ranges, leases) = (Ranges::default(), Leases::new(false));
            ranges.adding(DIR, b"a.0");
            rt::sleep(REUSED_AFTER / 2).await;
            ranges.adding(DIR, b"a.1");
            rt::sleep(REUSED_AFTER / 4 * 3).await;
            begun(&ranges, &leases);
            ranges.asked(&leases, DIR, Some(LEASE));
            [b"a.0", b"a.1"].map(|name| ranges.lacks(&leases, DIR, name).is_some())
        };
        assert_eq!(rt::sim::Machine::new(1).run(run).unwrap(), [true, false]);
    }

    #[test]
    fn names_are_asked_for_when_many_are_made_alike_and_not_at_once_again_when_that_fails() {
        let (ranges, leases) = (Ranges::default(), Leases::new(false));
        let made = |name: &str| ranges.note_made(&leases, DIR, name.as_bytes());
        for n in 1..HABIT {
            assert_eq!((made(&format!("a.{n}")), made(&format!("b{n}.x"))), (None, None));
        }
        assert_eq!(made("a.9"), Some(Bytes::from_static(b"a.")));
        assert_eq!((made("a.10"), made("b9.x")), (None, None), "one at a time");
        ranges.asked(&leases, DIR, None);
        assert_eq!(made("a.11"), None);
    }
}
