//! Name-prefix delegations: this session owns the names with a prefix, in a directory that others
//! use, too.
//!
//! A kernel looks up a name before it creates it. In a directory that several clients fill, only
//! the service knows that the name is free, unless no other client creates names with the same
//! prefix. Applications that share a directory mostly number their files after something of their
//! own (`rank3.00017`). A session that does so requests all names with the prefix of the last few
//! ([`wire::MetaOp::PreallocateInodes`]), lists the existing ones, and knows from then on which
//! names are free.
//!
//! # Why a name that is absent here is absent
//!
//! - The session has held the lease on the prefix since before it listed the names. Since then only
//!   this session has added any, and every list contains each entry that stays.
//! - A name is recorded before the request that may add it is sent, and is never removed from the
//!   record. A lookup of a removed name costs a request to the service.
//! - Names of requests that were in flight when the delegation began, or that were never answered
//!   and may still be executed, are recorded as well.
//! - Names are recorded as hashes. A collision only costs a request.
//!
//! A delegation without recent creates is given back soon: while it is held, other sessions can
//! cache nothing of the directory except its permissions.

use crate::cache::Delegations;
use crate::cache::complete_directories::{added_name, fingerprint};
use crate::cache::heuristic::{Backoff, UseFrequency};
use crate::cache::preallocation::{FIRST_INODES, InodePreallocation, NewInode};
use crate::session::lease_holder::PossibleName;
use crate::session::leases::{Leases, RequestStamp};
use crate::session::slots::{SLOT_REUSE_AFTER, is_uncertain};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Credentials, Errno, Error, HashMap, HashSet, InodeId, Result};
use wire::{LeaseMode, MetaOp, MetaReply};

/// How long a delegation without creates is kept, in nanoseconds, and how often that is checked.
const IDLE_NS: u64 = 2_000_000_000;
const SWEEP: Duration = Duration::from_secs(1);
/// Maximum number of tracked directories. Beyond it, those without delegations are dropped.
const MAX_DIRECTORIES: usize = 1024;
/// Maximum number of delegations in a directory, as many as a service grants, and of prefixes that
/// are counted there.
const MAX_PREFIXES: usize = 128;
/// Maximum number of names in all delegations, some 16 bytes each. Beyond it, the largest
/// delegation is given back.
const MAX_NAMES: usize = 1 << 20;
/// Entries of a listing page, and maximum number of pages: listing a larger directory costs more
/// than it saves.
const PAGE_ENTRIES: u32 = 2048;
const MAX_PAGES: u32 = 128;
/// Maximum number of unanswered requests of the last hour that may add names. Beyond it, no
/// delegation is requested.
const MAX_UNANSWERED: usize = 4096;

struct PrefixDelegation {
    prefix: Bytes,
    /// The inode number that carries the lease.
    lease: InodeId,
    /// Stamp of a time at which the lease was held.
    stamp: RequestStamp,
    since_ns: u64,
    /// When a name was last added.
    used_ns: u64,
    /// Hashes of all existing names, once `is_complete`, and of others.
    names: HashSet<u64>,
    is_complete: bool,
    /// Preallocated inodes for files created here; `None` while the directory's attributes change.
    preallocation: Option<InodePreallocation>,
}

#[derive(Default)]
struct Directory {
    delegations: Vec<PrefixDelegation>,
    /// Frequency of creates by prefix, least recently used first.
    frequencies: Vec<(Bytes, UseFrequency)>,
    /// A request for a delegation is in flight.
    is_requested: bool,
    /// Delays the next request.
    backoff: Backoff,
}

impl Directory {
    /// Returns the delegations that are still held.
    fn held_delegations(&mut self, leases: &Leases) -> &mut Vec<PrefixDelegation> {
        let is_held = |delegation: &PrefixDelegation| {
            leases.lease_covering(delegation.stamp, delegation.lease) == Some(LeaseMode::Write)
        };
        let lost = self
            .delegations
            .extract_if(.., |delegation| !is_held(delegation))
            .map(|range| range.since_ns)
            .min();
        if let Some(since_ns) = lost {
            self.backoff.begin_after(since_ns);
        }
        &mut self.delegations
    }

    fn delegation(&mut self, lease: InodeId) -> Option<&mut PrefixDelegation> {
        self.delegations.iter_mut().find(|delegation| delegation.lease == lease)
    }

    /// Counts a create; returns true if it is one of many.
    fn count_create(&mut self, prefix: &[u8], now_ns: u64) -> bool {
        let known = self.frequencies.iter().position(|(other, _)| other == prefix);
        let (prefix, mut frequency) = match known {
            Some(at) => self.frequencies.remove(at),
            None => (Bytes::copy_from_slice(prefix), UseFrequency::default()),
        };
        let is_frequent = frequency.note(now_ns);
        self.frequencies.push((prefix, frequency));
        if self.frequencies.len() > MAX_PREFIXES {
            self.frequencies.remove(0);
        }
        is_frequent
    }
}

#[derive(Default)]
struct PossibleNames {
    next: u64,
    /// Names that unanswered requests may add.
    unanswered: HashMap<u64, UnansweredAdd>,
}

struct UnansweredAdd {
    dir: InodeId,
    name: u64,
    since_ns: u64,
}

/// All name-prefix delegations of a session.
#[derive(Default)]
pub(crate) struct PrefixDelegations {
    directories: Mutex<HashMap<InodeId, Directory>>,
    /// The directory of each delegation, by the inode number that carries its lease.
    of_leases: Mutex<HashMap<InodeId, InodeId>>,
    /// The session has had a delegation.
    has_been_granted: AtomicBool,
    has_sweeper: AtomicBool,
    possible_names: Mutex<PossibleNames>,
}

impl PrefixDelegations {
    /// Prepares for a request that is about to be sent: records a name that it may add, or drops
    /// the preallocated inodes of a directory whose attributes it changes.
    pub(crate) fn prepare_request(&self, op: &MetaOp) -> Option<PossibleName> {
        match op {
            MetaOp::Setattr { ino, .. }
            | MetaOp::SetXattr { ino, .. }
            | MetaOp::RemoveXattr { ino, .. }
            | MetaOp::SetPattern { dir: ino, .. }
                if self.has_been_granted.load(Ordering::Acquire) =>
            {
                if let Some(directory) = self.directories.lock().get_mut(ino) {
                    directory.delegations.iter_mut().for_each(|delegation| delegation.preallocation = None);
                }
                None
            }
            op => added_name(op).map(|(dir, name)| self.record_possible(dir, name)),
        }
    }

    /// Records that a name may exist from now on.
    pub(crate) fn record_possible(&self, dir: InodeId, name: &[u8]) -> PossibleName {
        let id = {
            let mut adds = self.possible_names.lock();
            adds.next += 1;
            let id = adds.next;
            let since_ns = rt::monotonic_ns();
            adds.unanswered.insert(id, UnansweredAdd { dir, name: fingerprint(name), since_ns });
            id
        };
        // A delegation that begins after this finds the name in `unanswered`.
        self.record_name(dir, name);
        PossibleName(id)
    }

    /// Records the outcome of the request. Without it, the name may still be added.
    pub(crate) fn record_outcome<T>(&self, possible_name: &PossibleName, outcome: &Result<T>) {
        if !is_uncertain(outcome) {
            self.possible_names.lock().unanswered.remove(&possible_name.0);
        }
    }

    fn record_name(&self, dir: InodeId, name: &[u8]) {
        if !self.has_been_granted.load(Ordering::Acquire) {
            return;
        }
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&dir) else { return };
        for delegation in directory.delegations.iter_mut().filter(|range| name.starts_with(&range.prefix)) {
            delegation.names.insert(fingerprint(name));
            delegation.used_ns = rt::monotonic_ns();
        }
    }

    /// Returns the stamp since which the directory has surely had no such name; `None` if it may
    /// have one.
    pub(crate) fn absent_since(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<RequestStamp> {
        if !self.has_been_granted.load(Ordering::Acquire) {
            return None;
        }
        let mut directories = self.directories.lock();
        let delegations = directories.get_mut(&dir)?.held_delegations(leases);
        let delegation =
            delegations.iter().find(|range| range.is_complete && name.starts_with(&range.prefix))?;
        (!delegation.names.contains(&fingerprint(name))).then_some(delegation.stamp)
    }

    /// Takes a preallocated inode number for an asynchronous create, and returns the name's prefix.
    pub(crate) fn take_inode(
        &self,
        leases: &Leases,
        (dir, name): (InodeId, &[u8]),
        who: Credentials,
    ) -> Option<(NewInode, Bytes)> {
        if !self.has_been_granted.load(Ordering::Acquire) {
            return None;
        }
        let mut directories = self.directories.lock();
        let directory = directories.get_mut(&dir)?;
        let delegations = directory.held_delegations(leases).iter_mut();
        let delegation =
            delegations.into_iter().find(|range| range.is_complete && name.starts_with(&range.prefix))?;
        let preallocation = delegation.preallocation.as_mut().filter(|births| births.permits(who))?;
        if delegation.names.contains(&fingerprint(name)) {
            return None;
        }
        let new_inode = preallocation.take_inode(delegation.lease, delegation.stamp)?;
        let prefix = delegation.prefix.clone();
        let needs_refill = new_inode.needs_refill && !directory.is_requested;
        directory.is_requested |= needs_refill;
        Some((NewInode { needs_refill, ..new_inode }, prefix))
    }

    /// The directory of a delegation.
    pub(crate) fn directory_of(&self, lease: InodeId) -> Option<InodeId> {
        if !self.has_been_granted.load(Ordering::Acquire) {
            return None;
        }
        self.of_leases.lock().get(&lease).copied()
    }

    /// Records that the lease is no longer held.
    pub(crate) fn forget_lease(&self, lease: InodeId) {
        if self.has_been_granted.load(Ordering::Acquire) {
            self.of_leases.lock().remove(&lease);
        }
    }

    /// Counts a create; returns the prefix that the client should request.
    fn count_create(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<Bytes> {
        let prefix = prefix_of(name)?;
        let now_ns = rt::monotonic_ns();
        let mut directories = self.directories.lock();
        if directories.len() >= MAX_DIRECTORIES && !directories.contains_key(&dir) {
            directories.retain(|_, directory| !directory.delegations.is_empty() || directory.is_requested);
        }
        let directory = directories.entry(dir).or_default();
        let is_known = |delegation: &PrefixDelegation| {
            name.starts_with(&delegation.prefix) && delegation.preallocation.is_some()
        };
        let wanted = directory.count_create(prefix, now_ns)
            && !directory.held_delegations(leases).iter().any(is_known)
            && directory.delegations.len() < MAX_PREFIXES
            && !directory.is_requested
            && directory.backoff.is_over(now_ns);
        directory.is_requested |= wanted;
        wanted.then(|| Bytes::copy_from_slice(prefix))
    }

    /// Records a granted delegation, or more inode numbers for one. Returns true if the existing
    /// names must be listed.
    fn record_grant(
        &self,
        leases: &Leases,
        (dir, prefix): (InodeId, &Bytes),
        (lease, stamp): (InodeId, RequestStamp),
        preallocation: Option<InodePreallocation>,
    ) -> Result<bool> {
        self.has_been_granted.store(true, Ordering::Release);
        self.of_leases.lock().insert(lease, dir);
        let mut directories = self.directories.lock();
        let directory = directories.entry(dir).or_default();
        if let Some(delegation) =
            directory.held_delegations(leases).iter_mut().find(|range| range.lease == lease)
        {
            delegation.preallocation = match (preallocation, delegation.preallocation.take()) {
                (Some(births), Some(before)) => Some(births.append_to(before)),
                (births, _) => births,
            };
            return Ok(!delegation.is_complete);
        }
        let now_ns = rt::monotonic_ns();
        let mut adds = self.possible_names.lock();
        let is_over =
            |add: &UnansweredAdd| now_ns.saturating_sub(add.since_ns) > SLOT_REUSE_AFTER.as_nanos() as u64;
        adds.unanswered.retain(|_, add| !is_over(add));
        if adds.unanswered.len() > MAX_UNANSWERED {
            return Err(Error::new(Errno::EBUSY, "too many requests are unanswered"));
        }
        let adds_in_directory = adds.unanswered.values().filter(|add| add.dir == dir);
        directory.delegations.push(PrefixDelegation {
            prefix: prefix.clone(),
            lease,
            stamp,
            since_ns: now_ns,
            used_ns: now_ns,
            names: adds_in_directory.map(|add| add.name).collect(),
            is_complete: false,
            preallocation,
        });
        Ok(true)
    }

    /// Records existing names. Returns false if there are too many, or the delegation is gone.
    fn add_listed<'a>(&self, dir: InodeId, lease: InodeId, names: impl Iterator<Item = &'a Bytes>) -> bool {
        let mut directories = self.directories.lock();
        let Some(delegation) = directories.get_mut(&dir).and_then(|directory| directory.delegation(lease))
        else {
            return false;
        };
        delegation
            .names
            .extend(names.filter(|name| name.starts_with(&delegation.prefix)).map(|name| fingerprint(name)));
        delegation.names.len() <= MAX_NAMES
    }

    /// Records the end of a request for a delegation and of the listing of its names.
    fn record_listing(&self, leases: &Leases, dir: InodeId, listed: Option<InodeId>) {
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&dir) else { return };
        directory.is_requested = false;
        let delegation = listed.and_then(|lease| {
            directory.held_delegations(leases).iter_mut().find(|delegation| delegation.lease == lease)
        });
        match delegation {
            Some(delegation) => delegation.is_complete = true,
            None => directory.backoff.begin(),
        }
    }

    fn forget(&self, dir: InodeId, lease: InodeId) {
        if let Some(directory) = self.directories.lock().get_mut(&dir) {
            directory.delegations.retain(|delegation| delegation.lease != lease);
        }
    }

    /// Removes unused delegations. Returns the leases to give back, and whether any lease is left.
    fn take_idle(&self, leases: &Leases) -> (Vec<InodeId>, bool) {
        let now_ns = rt::monotonic_ns();
        let mut directories = self.directories.lock();
        for directory in directories.values_mut() {
            directory
                .held_delegations(leases)
                .retain(|delegation| now_ns.saturating_sub(delegation.used_ns) < IDLE_NS);
        }
        let mut retained: Vec<(usize, InodeId)> = {
            let delegations = directories.values().flat_map(|directory| &directory.delegations);
            delegations.map(|delegation| (delegation.names.len(), delegation.lease)).collect()
        };
        retained.sort_unstable();
        while retained.iter().map(|(names, _)| names).sum::<usize>() > MAX_NAMES {
            retained.pop();
        }
        let retained: HashSet<InodeId> = retained.into_iter().map(|(_, lease)| lease).collect();
        for directory in directories.values_mut() {
            directory.delegations.retain(|delegation| retained.contains(&delegation.lease));
        }
        let mut of_leases = self.of_leases.lock();
        of_leases.retain(|lease, _| leases.mode(*lease).is_some());
        let idle = of_leases.keys().filter(|lease| !retained.contains(lease)).copied().collect();
        (idle, !of_leases.is_empty())
    }
}

/// The prefix that a name shares with others of its series: the part before its last number.
fn prefix_of(name: &[u8]) -> Option<&[u8]> {
    let last = name.iter().rposition(u8::is_ascii_digit)?;
    let digits = name[..last].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    Some(&name[..last - digits]).filter(|prefix| !prefix.is_empty())
}

impl Delegations {
    /// Counts a create. A client that creates many names with one prefix, and must ask the service
    /// whether each is free, requests that prefix.
    pub(crate) fn count_prefix_create(self: &Arc<Self>, credentials: Credentials, dir: InodeId, name: &[u8]) {
        if self.creates_synchronously || self.names.complete.is_complete(dir) {
            return;
        }
        let Some(prefix) = self.names.prefixes.count_create(&self.session.leases, dir, name) else { return };
        self.request_prefix(credentials, dir, prefix, FIRST_INODES);
    }

    /// Requests a delegation, or more inode numbers for one.
    pub(crate) fn request_prefix(
        self: &Arc<Self>,
        credentials: Credentials,
        dir: InodeId,
        prefix: Bytes,
        count: u32,
    ) {
        let delegations = self.clone();
        rt::spawn(async move {
            let listed = delegations.obtain_prefix(credentials, (dir, &prefix), count).await;
            if let Err(error) = &listed {
                tracing::trace!(ino = %dir, ?prefix, %error, "no name-prefix delegation: it was refused, or its names can't be listed");
            }
            delegations.names.prefixes.record_listing(&delegations.session.leases, dir, listed.ok());
            delegations.start_prefix_sweeper();
        });
    }

    async fn obtain_prefix(
        &self,
        credentials: Credentials,
        (dir, prefix): (InodeId, &Bytes),
        count: u32,
    ) -> Result<InodeId> {
        let answer = self
            .session
            .query_as(credentials, MetaOp::PreallocateInodes { dir, count, prefix: prefix.clone() })
            .await?;
        // Stamped before the check that the lease is held, so the lease is held since this time.
        let now = self.session.leases.stamp_request();
        let refused = || Error::new(Errno::EBUSY, "the service doesn't grant the delegation");
        let MetaReply::Preallocated { prefix_lease: Some(lease), .. } = answer.reply else {
            return Err(refused());
        };
        if self.session.leases.lease_covering(answer.stamp, lease) != Some(LeaseMode::Write) {
            return Err(refused());
        }
        self.names.async_creates.begin_use();
        let preallocation = InodePreallocation::of(&answer.reply);
        let listed = match self.names.prefixes.record_grant(
            &self.session.leases,
            (dir, prefix),
            (lease, now),
            preallocation,
        ) {
            Ok(true) => self.list_prefix(credentials, (dir, prefix), lease).await,
            Ok(false) => Ok(()),
            Err(refused) => Err(refused),
        };
        if listed.is_err() {
            self.names.prefixes.forget(dir, lease);
            self.inodes.note_unused(lease);
        }
        listed.map(|()| lease)
    }

    async fn list_prefix(
        &self,
        credentials: Credentials,
        (dir, prefix): (InodeId, &Bytes),
        lease: InodeId,
    ) -> Result<()> {
        let mut cookie = 0;
        for _ in 0..MAX_PAGES {
            let prefix = prefix.clone();
            let list = MetaOp::Readdir { dir, cookie, limit: PAGE_ENTRIES, attributes: false, prefix };
            let reply = self.session.query_as(credentials, list).await?.reply;
            let MetaReply::Directory { entries, end, .. } = reply else {
                return Err(crate::unexpected(reply));
            };
            if !self.names.prefixes.add_listed(dir, lease, entries.iter().map(|entry| &entry.name)) {
                break;
            }
            match entries.last() {
                Some(last) if !end => cookie = last.cookie,
                _ => return Ok(()),
            }
        }
        Err(Error::new(Errno::E2BIG, "the directory has too many names with this prefix"))
    }

    /// Starts the task that gives unused delegations back.
    fn start_prefix_sweeper(self: &Arc<Self>) {
        if self.names.prefixes.has_sweeper.swap(true, Ordering::AcqRel) {
            return;
        }
        rt::spawn(self.clone().sweep_prefixes());
    }

    async fn sweep_prefixes(self: Arc<Self>) {
        while !self.session.has_ended() {
            rt::sleep(SWEEP).await;
            let (idle, has_leases) = self.names.prefixes.take_idle(&self.session.leases);
            // Repeated as long as asynchronous creates are pending there.
            idle.into_iter().for_each(|lease| self.inodes.note_unused(lease));
            if has_leases {
                continue;
            }
            self.names.prefixes.has_sweeper.store(false, Ordering::Release);
            // A delegation that was added meanwhile relied on this task.
            if self.names.prefixes.of_leases.lock().is_empty()
                || self.names.prefixes.has_sweeper.swap(true, Ordering::AcqRel)
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::heuristic::FREQUENT_USES;
    use types::NodeId;
    use wire::{LeaseGrant, MetaResponse, Recall};

    const HOME: NodeId = NodeId(1);
    const DIR: InodeId = InodeId(9);
    const LEASE: InodeId = InodeId(100);

    fn granted(leases: &Leases) {
        let grants = vec![LeaseGrant { ino: LEASE, mode: LeaseMode::Write }];
        leases.take_grants(leases.stamp_request(), HOME, &MetaResponse { grants, ..MetaReply::Unit.into() });
    }

    fn begun(delegations: &PrefixDelegations, leases: &Leases) {
        granted(leases);
        let prefix = Bytes::from_static(b"a.");
        assert!(
            delegations.record_grant(leases, (DIR, &prefix), (LEASE, leases.stamp_request()), None).unwrap()
        );
    }

    fn lacks(delegations: &PrefixDelegations, leases: &Leases, name: &str) -> bool {
        delegations.absent_since(leases, DIR, name.as_bytes()).is_some()
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
    fn a_name_is_absent_after_the_listing_until_it_may_be_added() {
        let (delegations, leases) = (PrefixDelegations::default(), Leases::new(false));
        let (_, answered) =
            (delegations.record_possible(DIR, b"a.0"), delegations.record_possible(DIR, b"a.1"));
        delegations.record_outcome(&answered, &Ok(()));
        begun(&delegations, &leases);
        assert!(!lacks(&delegations, &leases, "a.2"), "not listed yet");
        assert!(delegations.add_listed(
            DIR,
            LEASE,
            [Bytes::from_static(b"a.1"), Bytes::from_static(b"b.3")].iter()
        ));
        let meanwhile = delegations.record_possible(DIR, b"a.5");
        delegations.record_listing(&leases, DIR, Some(LEASE));
        assert!(lacks(&delegations, &leases, "a.2") && !lacks(&delegations, &leases, "b.2"));
        assert!(!lacks(&delegations, &leases, "a.1"), "it is there");
        assert!(!lacks(&delegations, &leases, "a.0"), "nobody has said that it isn't made");
        assert!(!lacks(&delegations, &leases, "a.5"));
        delegations.record_outcome(&meanwhile, &Ok(()));
        assert!(!lacks(&delegations, &leases, "a.5"));
        let refused = delegations.record_possible(DIR, b"a.2");
        delegations.record_outcome::<()>(&refused, &Err(Errno::EEXIST.into()));
        assert!(!lacks(&delegations, &leases, "a.2"));
        leases.begin_recall(HOME, &Recall { number: 1, ino: LEASE, retain: None });
        assert!(!lacks(&delegations, &leases, "a.7"), "others may be let in");
        leases.end_recall(LEASE, None);
        granted(&leases);
        assert!(!lacks(&delegations, &leases, "a.7"), "what was known is forgotten");
    }

    #[test]
    fn unanswered_requests_are_dropped_when_they_can_no_longer_be_executed() {
        let run = async {
            let (delegations, leases) = (PrefixDelegations::default(), Leases::new(false));
            delegations.record_possible(DIR, b"a.0");
            rt::sleep(SLOT_REUSE_AFTER / 2).await;
            delegations.record_possible(DIR, b"a.1");
            rt::sleep(SLOT_REUSE_AFTER / 4 * 3).await;
            begun(&delegations, &leases);
            delegations.record_listing(&leases, DIR, Some(LEASE));
            [b"a.0", b"a.1"].map(|name| delegations.absent_since(&leases, DIR, name).is_some())
        };
        assert_eq!(rt::sim::Machine::new(1).run(run).unwrap(), [true, false]);
    }

    #[test]
    fn a_prefix_is_requested_after_many_creates_and_not_soon_after_a_failure() {
        let (delegations, leases) = (PrefixDelegations::default(), Leases::new(false));
        let made = |name: &str| delegations.count_create(&leases, DIR, name.as_bytes());
        for n in 1..FREQUENT_USES {
            assert_eq!((made(&format!("a.{n}")), made(&format!("b{n}.x"))), (None, None));
        }
        assert_eq!(made("a.9"), Some(Bytes::from_static(b"a.")));
        assert_eq!((made("a.10"), made("b9.x")), (None, None), "one at a time");
        delegations.record_listing(&leases, DIR, None);
        assert_eq!(made("a.11"), None);
    }
}
