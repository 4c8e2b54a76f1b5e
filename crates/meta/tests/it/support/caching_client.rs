//! A client that caches what its leases allow, and acknowledges recalls as it should. It has
//! several requests under way at once, and its network is slow.

use super::world::SECOND;
use super::{Client, bytes};
use bytes::Bytes;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use types::{Attr, Errno, InodeId, Result};
use wire::{LeaseGrant, LeaseMode, MetaOp, MetaReply, MetaResponse, Recall, RecallAck};

/// The last size that any client wrote, by file: every later read must see it.
pub type Sizes = Rc<Mutex<BTreeMap<InodeId, u64>>>;

pub struct CachingClient {
    pub client: Client,
    state: Mutex<State>,
    /// Shared by requests; exclusive for releases, which must not overlap a grant.
    gate: rt::sync::RwLock,
    sizes: Sizes,
    pub stopping: Cell<bool>,
    pub checks: Cell<u64>,
    /// Of these, comparisons of what a directory's `Permissions` cover.
    pub permissions: Cell<u64>,
}

#[derive(Default)]
struct State {
    leases: BTreeMap<InodeId, Lease>,
    /// The last recall that was handled.
    seen: u64,
    next_id: u64,
    /// Changes of this session, counted when they begin and when they end.
    changes: u64,
    changing: u32,
    open: BTreeSet<InodeId>,
    /// Sizes that the service doesn't know yet.
    unreported: BTreeMap<InodeId, u64>,
}

/// A lease, and what is cached under it.
struct Lease {
    /// A new number each time that the lease is lost and acquired again.
    id: u64,
    mode: LeaseMode,
    attr: Option<Attr>,
    inline: Option<Bytes>,
    /// Names of a directory; `None` for absent ones.
    names: BTreeMap<String, Option<InodeId>>,
}

/// When a value was cached, to check whether it has been valid ever since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CacheStamp {
    lease: u64,
    changes: u64,
}

impl State {
    fn lease(&mut self, ino: InodeId) -> Option<&mut Lease> {
        self.leases.get_mut(&ino)
    }

    fn take(&mut self, grants: &[LeaseGrant]) {
        for grant in grants {
            let id = self.next_id;
            let new = || Lease { id, mode: grant.mode, attr: None, inline: None, names: BTreeMap::new() };
            let lease = self.leases.entry(grant.ino).or_insert_with(new);
            if lease.mode == LeaseMode::Permissions && grant.mode != LeaseMode::Permissions {
                *lease = new();
            }
            self.next_id += u64::from(lease.id == id);
            if grant.mode != LeaseMode::Permissions {
                lease.mode = grant.mode;
            }
        }
    }

    /// `None` while nothing is certain.
    fn cache_stamp(&self, ino: InodeId) -> Option<CacheStamp> {
        let lease = self.leases.get(&ino).filter(|lease| lease.mode != LeaseMode::Shared)?;
        (self.changing == 0).then_some(CacheStamp { lease: lease.id, changes: self.changes })
    }

    fn forget_cached(&mut self) {
        for lease in self.leases.values_mut() {
            lease.attr = None;
            lease.inline = None;
            lease.names.clear();
        }
    }
}

async fn delay() {
    rt::sleep(Duration::from_micros(rt::random_u64() % 3000)).await;
}

impl CachingClient {
    pub fn new(client: Client, sizes: Sizes) -> Rc<CachingClient> {
        Rc::new(CachingClient {
            client,
            state: Mutex::default(),
            gate: rt::sync::RwLock::new(),
            sizes,
            stopping: Cell::new(false),
            checks: Cell::new(0),
            permissions: Cell::new(0),
        })
    }

    async fn send(&self, op: MetaOp) -> Result<MetaResponse> {
        delay().await;
        let response = self.client.respond(0, op).await;
        delay().await;
        response
    }

    /// Sends a request, and caches what the answer allows.
    pub async fn ask(&self, op: MetaOp) -> Result<MetaReply> {
        let _gate = self.gate.read().await;
        let (changes, dir) = {
            let state = self.state.lock();
            let dir = lookup_of(&op).and_then(|(dir, _)| state.cache_stamp(dir));
            (state.changes, dir)
        };
        let floor = attr_op(&op).and_then(|ino| self.known_size(ino).map(|size| (ino, size)));
        let response = self.send(op.clone()).await;
        let mut state = self.state.lock();
        let is_unchanged = state.changing == 0 && state.changes == changes;
        match response {
            Ok(response) => {
                let relied_on = response.recalls >= state.seen;
                if relied_on {
                    state.take(&response.grants);
                }
                if let (Some((ino, floor)), Some(attr)) = (floor, attr_of(&response.reply)) {
                    assert!(
                        attr.ino != ino || attr.size >= floor,
                        "{op:?} missed a size of {floor}: {attr:?}"
                    );
                }
                if relied_on && is_unchanged {
                    cache(&mut state, &op, &response);
                }
                Ok(response.reply)
            }
            Err(error) => {
                // The absence of a name may be cached under a lease that was held all the time.
                if let (Some((dir_ino, name)), Errno::ENOENT, Some(then)) = (lookup_of(&op), error.errno, dir)
                    && state.cache_stamp(dir_ino) == Some(then)
                {
                    state.lease(dir_ino).unwrap().names.insert(name, None);
                }
                Err(error)
            }
        }
    }

    /// Sends a change, and drops the whole cache: this client is correct, not fast.
    pub async fn change(&self, op: MetaOp) -> Result<MetaReply> {
        let _gate = self.gate.read().await;
        {
            let mut state = self.state.lock();
            state.changing += 1;
            state.forget_cached();
        }
        let response = self.send(op).await;
        let mut state = self.state.lock();
        state.changing -= 1;
        state.changes += 1;
        let response = response?;
        if response.recalls >= state.seen {
            state.take(&response.grants);
        }
        Ok(response.reply)
    }

    pub async fn open(&self, ino: InodeId, wish: LeaseMode) {
        if self.ask(MetaOp::Open { ino, requested_lease: Some(wish) }).await.is_ok() {
            self.state.lock().open.insert(ino);
        }
    }

    /// Extends a file directly in its chunk files, if no other client can see that.
    pub fn write(&self, ino: InodeId) {
        let mut state = self.state.lock();
        if state.lease(ino).is_none_or(|lease| lease.mode != LeaseMode::Write) {
            return;
        }
        let mut sizes = self.sizes.lock();
        let size = sizes.entry(ino).or_default();
        *size += 1;
        state.unreported.insert(ino, *size);
        state.lease(ino).unwrap().attr = None;
    }

    /// Releases a lease and an open file.
    pub async fn release(&self, ino: InodeId) {
        let _alone = self.gate.write().await;
        self.report(ino).await;
        let seen = {
            let mut state = self.state.lock();
            state.leases.remove(&ino);
            state.open.remove(&ino);
            state.seen
        };
        self.send(MetaOp::Release { inodes: vec![ino], seen }).await.unwrap();
    }

    /// The size that the service must report; `None` if this client has a newer one.
    fn known_size(&self, ino: InodeId) -> Option<u64> {
        let known = self.sizes.lock().get(&ino).copied()?;
        (!self.state.lock().unreported.contains_key(&ino)).then_some(known)
    }

    async fn report(&self, ino: InodeId) {
        let size = self.state.lock().unreported.get(&ino).copied();
        if let Some(size) = size {
            let (blocks, mtime) = (0, None);
            if let Err(error) = self.send(MetaOp::BeginWrite { ino }).await {
                assert_eq!(error.errno, Errno::ESTALE, "a file can only be gone");
            }
            let op = MetaOp::EndWrite {
                ino,
                size,
                blocks,
                lens: Vec::new(),
                mtime,
                done: false,
                kill_suid_sgid: false,
            };
            match self.send(op).await {
                Ok(_) => {}
                Err(error) => assert_eq!(error.errno, Errno::ESTALE, "a file can only be gone"),
            }
            let mut state = self.state.lock();
            if state.unreported.get(&ino) == Some(&size) {
                state.unreported.remove(&ino);
            }
        }
    }

    /// Handles recalls until it is stopped.
    pub async fn answer_recalls(self: Rc<Self>) {
        let mut after = 0;
        while !self.stopping.get() {
            let reply = self.client.call(MetaOp::NextRecalls { after }).await.unwrap();
            let MetaReply::Recalls(recalls) = reply else { panic!("{reply:?}") };
            delay().await;
            for recall in recalls {
                assert_eq!(recall.number, after + 1, "recalls come one after the other");
                after = recall.number;
                self.answer(recall).await;
            }
        }
    }

    async fn answer(&self, recall: Recall) {
        let ino = recall.ino;
        {
            let mut state = self.state.lock();
            state.seen = recall.number;
            match recall.retain {
                None => _ = state.leases.remove(&ino),
                Some(mode) => {
                    if let Some(lease) = state.lease(ino) {
                        lease.mode = mode;
                        lease.attr = None;
                        lease.inline = None;
                        lease.names.clear();
                    }
                }
            }
        }
        self.report(ino).await;
        let in_use = self.state.lock().open.contains(&ino);
        let yields = vec![RecallAck { number: recall.number, ino, in_use }];
        self.send(MetaOp::AckRecalls { acks: yields }).await.unwrap();
    }

    /// Compares a cached value with the service's answer to a client without leases.
    pub async fn check(&self, observer: &Client, ino: InodeId, name: &str) {
        let Some((moment, mode, attr, inline, child)) = self.cached(ino, name) else { return };
        let still = || self.state.lock().cache_stamp(ino) == Some(moment);
        if let Some(attr) = attr.filter(|_| mode == LeaseMode::Read) {
            let found = observer.getattr(ino).await;
            if still() {
                assert_eq!(found, Ok(attr), "{:?} had this cached", self.client.session);
                self.checks.set(self.checks.get() + 1);
            }
        }
        if let Some(attr) = attr.filter(|_| mode == LeaseMode::Permissions) {
            let found = observer.getattr(ino).await;
            if still() {
                let of = |attr: &Attr| (attr.mode, attr.uid, attr.gid);
                let told = found.as_ref().map(of);
                assert_eq!(told, Ok(of(&attr)), "{:?} had these permissions cached", self.client.session);
                self.checks.set(self.checks.get() + 1);
                self.permissions.set(self.permissions.get() + 1);
            }
        }
        if let Some(inline) = inline.filter(|_| mode == LeaseMode::Read) {
            let found = observer.call(MetaOp::Open { ino, requested_lease: None }).await;
            if still() {
                let Ok(MetaReply::File(info)) = found else { panic!("{found:?}") };
                assert_eq!(info.inline, Some(inline));
                self.checks.set(self.checks.get() + 1);
            }
        }
        if let Some(child) = child.filter(|_| mode != LeaseMode::Permissions) {
            let found = observer.find(ino, name).await;
            if still() {
                assert_eq!(found.as_ref().ok().copied(), child, "{name} in {ino}: {found:?}");
                self.checks.set(self.checks.get() + 1);
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "a tuple of what is cached")]
    fn cached(
        &self,
        ino: InodeId,
        name: &str,
    ) -> Option<(CacheStamp, LeaseMode, Option<Attr>, Option<Bytes>, Option<Option<InodeId>>)> {
        let mut state = self.state.lock();
        let moment = state.cache_stamp(ino)?;
        let lease = state.lease(ino)?;
        Some((moment, lease.mode, lease.attr, lease.inline.clone(), lease.names.get(name).copied()))
    }

    /// Releases everything and ends.
    pub async fn end(&self) {
        self.stopping.set(true);
        let inodes: Vec<InodeId> = {
            let state = self.state.lock();
            state.leases.keys().chain(&state.open).chain(state.unreported.keys()).copied().collect()
        };
        for ino in inodes {
            self.release(ino).await;
        }
        rt::sleep(10 * SECOND).await;
    }
}

fn cache(state: &mut State, op: &MetaOp, response: &MetaResponse) {
    let granted = |ino| response.grants.iter().any(|grant| grant.ino == ino);
    // A late answer under `Permissions` is not valid under a stronger lease.
    let weaker = |grant: &LeaseGrant, lease: &Lease| {
        grant.mode == LeaseMode::Permissions && lease.mode != LeaseMode::Permissions
    };
    let is_late =
        |ino, lease: &Lease| response.grants.iter().any(|grant| grant.ino == ino && weaker(grant, lease));
    let mut put = |attr: &Attr| {
        if granted(attr.ino)
            && let Some(lease) = state.leases.get_mut(&attr.ino)
            && !is_late(attr.ino, lease)
        {
            lease.attr = Some(*attr);
        }
    };
    match &response.reply {
        MetaReply::Directory { entries, .. } => entries.iter().filter_map(|e| e.attr.as_ref()).for_each(put),
        reply => attr_of(reply).into_iter().for_each(&mut put),
    }
    if let (MetaOp::Lookup { parent, name }, Some(attr)) = (op, attr_of(&response.reply))
        && granted(*parent)
    {
        let name = String::from_utf8(name.to_vec()).unwrap();
        let lease = state.lease(*parent).unwrap();
        if !is_late(*parent, lease) {
            lease.names.insert(name, Some(attr.ino));
        }
    }
    if let MetaReply::File(info) = &response.reply
        && granted(info.attr.ino)
    {
        state.lease(info.attr.ino).unwrap().inline = info.inline.clone();
    }
}

fn attr_of(reply: &MetaReply) -> Option<&Attr> {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Attr(attr) => Some(attr),
        MetaReply::File(info) => Some(&info.attr),
        _ => None,
    }
}

fn attr_op(op: &MetaOp) -> Option<InodeId> {
    match op {
        MetaOp::Getattr { ino } => Some(*ino),
        _ => None,
    }
}

fn lookup_of(op: &MetaOp) -> Option<(InodeId, String)> {
    match op {
        MetaOp::Lookup { parent, name } => Some((*parent, String::from_utf8(name.to_vec()).unwrap())),
        _ => None,
    }
}

pub fn lookup(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Lookup { parent, name: bytes(name) }
}
