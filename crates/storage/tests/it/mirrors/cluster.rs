//! Nodes with one target each in one process, the links between them, and a management service that
//! decides like the real one.

use chunkstore::Store;
use net::{Channel, Handler, LocalFuture};
use routing::StorageChannels;
use rt::sim::Machine;
use rt::{File, IoBuf, OpenOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::{GroupManagement, GroupPeers, MemberChange, ServingLease, StorageService};
use testkit::map::MapBuilder;
use testkit::targets;
use types::{
    ChunkFileId, ClusterMap, Epoch, Errno, Error, Group, GroupId, MapHandle, MemberState, Refusal, Result,
    SessionId, TargetId, TargetState, Timestamp,
};
use wire::mgmt::ReconcileFiles;
use wire::{DataPath as Way, GroupContext, GroupRole, SlotSequence, StorageOp, StorageReply, StorageRequest};

pub const GROUP: GroupId = GroupId(7);
pub const INO: ChunkFileId = ChunkFileId(9);
pub const MIB: u64 = 1 << 20;
/// Folders between `chunks` and a chunk file.
const FOLDER_DEPTH: usize = 2;

/// Management, which considers every member reachable unless a test says otherwise.
pub struct Management {
    map: Mutex<Arc<ClusterMap>>,
    nodes: Mutex<BTreeMap<TargetId, MapHandle>>,
    pub is_unreachable: AtomicBool,
    /// Refuses primaries that want to leave; `refusals` counts them.
    pub refuses_to_leave: AtomicBool,
    pub refusals: AtomicU64,
    pub changes: Mutex<Vec<MemberChange>>,
    /// Files in the metadata, with their lengths in the group, and whether the metadata service
    /// answers.
    pub files: Mutex<BTreeMap<ChunkFileId, u64>>,
    pub has_metadata: AtomicBool,
    /// Nodes that don't receive maps now. Management confirms that all processes know a map once
    /// they receive it.
    pub without_maps: Mutex<BTreeSet<TargetId>>,
    channels: Mutex<Option<Arc<StorageChannels>>>,
}

impl Management {
    pub fn new(members: u32) -> Arc<Management> {
        Management::with_others(members, 0)
    }

    /// With `others` additional targets that are in no group.
    pub fn with_others(members: u32, others: u32) -> Arc<Management> {
        let first: Vec<TargetId> = (1..=members).map(TargetId).collect();
        let map = MapBuilder::new(members + others).node_per_target().mirror(GROUP, &first).build();
        Arc::new(Management {
            map: Mutex::new(Arc::new(map)),
            nodes: Mutex::default(),
            is_unreachable: AtomicBool::new(false),
            refuses_to_leave: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            changes: Mutex::default(),
            files: Mutex::default(),
            has_metadata: AtomicBool::new(true),
            without_maps: Mutex::default(),
            channels: Mutex::default(),
        })
    }

    pub fn group(&self) -> Group {
        self.map.lock().unwrap().group(GROUP).unwrap().clone()
    }

    /// How often a scrub was requested.
    pub fn scrub_requests(&self) -> u64 {
        self.map.lock().unwrap().settings.scrub.asked
    }

    pub fn state(&self, target: u32) -> MemberState {
        self.group().state_of(TargetId(target)).unwrap()
    }

    /// Whether a target is in sync, and no other in-sync member is reachable.
    fn is_last(&self, target: TargetId) -> bool {
        let map = self.map.lock().unwrap().clone();
        let is_reachable = |id: TargetId| map.target(id).is_some_and(|t| t.state == TargetState::Online);
        let counts = |(id, state): (TargetId, MemberState)| {
            (state == MemberState::InSync && (id == target || is_reachable(id))).then_some(id)
        };
        map.group(GROUP).unwrap().members_with_states().filter_map(counts).eq([target])
    }

    /// Publishes another map to all nodes.
    pub fn edit(&self, change: impl FnOnce(&mut ClusterMap)) -> Arc<ClusterMap> {
        let mut map = self.map.lock().unwrap();
        let mut next = ClusterMap::clone(&map);
        next.epoch.0 += 1;
        change(&mut next);
        *map = Arc::new(next);
        let nodes = self.nodes.lock().unwrap();
        let without_maps = self.without_maps.lock().unwrap();
        for (_, node) in nodes.iter().filter(|(target, _)| !without_maps.contains(target)) {
            node.store(map.clone());
        }
        map.clone()
    }

    /// Acts like `SetMember`.
    pub fn set(&self, target: u32, state: MemberState) -> Arc<ClusterMap> {
        let target = TargetId(target);
        self.edit(|map| {
            let epoch = map.epoch;
            let group = &mut map.groups[0];
            let was_primary = group.primary() == Some(target);
            let mut members: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
            let at = members.iter().position(|(member, _)| *member == target).unwrap();
            members[at].1 = state;
            if was_primary && state != MemberState::InSync {
                let gone = members.remove(at);
                members.push(gone);
                // The new primary resyncs the others.
                let others = members.iter_mut().filter(|(_, state)| *state == MemberState::InSync).skip(1);
                others.for_each(|(_, state)| *state = MemberState::NeedsResync);
            }
            group.members = members.iter().map(|(member, _)| *member).collect();
            group.states = members.iter().map(|(_, state)| *state).collect();
            group.since = epoch;
        })
    }

    /// Acts like `RecoverGroup`.
    pub fn recover_group(&self, from: u32) {
        let from = TargetId(from);
        self.edit(|map| {
            let since = map.epoch;
            let group = &mut map.groups[0];
            group.members.sort_by_key(|id| *id != from);
            let state =
                |id: &TargetId| if *id == from { MemberState::InSync } else { MemberState::NeedsRebuild };
            group.states = group.members.iter().map(state).collect();
            (group.revived, group.since) = (Some(from), since);
        });
    }

    async fn wait_until_known(&self) -> Result<()> {
        for _ in 0..50 {
            if self.without_maps.lock().unwrap().is_empty() {
                return Ok(());
            }
            rt::sleep(Duration::from_millis(10)).await;
        }
        Err(Error::new(Errno::ETIMEDOUT, "a member hasn't received it"))
    }

    /// Lets a node receive maps again.
    pub fn receive_maps(&self, target: u32) {
        self.without_maps.lock().unwrap().remove(&TargetId(target));
        self.nodes.lock().unwrap()[&TargetId(target)].store(self.map.lock().unwrap().clone());
    }

    /// Adds an empty target to the group: in the place of a member, or in addition until it can
    /// replace one.
    pub fn add_member(&self, target: u32, (place_of, beside): (u32, bool)) {
        self.edit(|map| {
            let epoch = map.epoch;
            let group = &mut map.groups[0];
            let mut members: Vec<(TargetId, MemberState)> = group.members_with_states().collect();
            members.retain(|(id, _)| beside || id.0 != place_of);
            members.push((TargetId(target), MemberState::NeedsRebuild));
            (group.members, group.states) = members.into_iter().unzip();
            group.leaving = beside.then_some(TargetId(place_of));
            group.since = epoch;
        });
    }

    /// Removes a member that isn't needed any more. If it was the primary and has left changes
    /// unfinished, the others must be resynced.
    fn remove_member(&self, target: TargetId, is_orderly: bool) -> Arc<ClusterMap> {
        assert_eq!(self.group().primary() == Some(target), is_orderly);
        self.edit(|map| {
            let epoch = map.epoch;
            let group = &mut map.groups[0];
            group.members.retain(|id| *id != target);
            (group.states, group.leaving, group.since) = (vec![], None, epoch);
        })
    }

    pub fn set_online(&self, target: u32, is_online: bool) {
        self.edit(|map| {
            let state = if is_online { TargetState::Online } else { TargetState::Offline };
            map.targets[target as usize - 1].state = state;
        });
    }
}

impl GroupManagement for Management {
    fn set_member(&self, change: MemberChange) -> LocalFuture<'_, Result<Arc<ClusterMap>>> {
        Box::pin(async move {
            rt::sleep(Duration::from_millis(5)).await;
            if self.is_unreachable.load(Ordering::SeqCst) {
                return Err(Error::new(Errno::ETIMEDOUT, "management is away"));
            }
            if change.is_orderly
                && change.state == MemberState::InSync
                && self.group().since == change.version
            {
                self.changes.lock().unwrap().push(change);
                return Ok(self.edit(|map| {
                    let since = map.epoch;
                    (map.groups[0].revived, map.groups[0].since) = (None, since);
                }));
            }
            if self.group().since != change.version || self.state(change.target.0) == change.state {
                self.wait_until_known().await?;
                return Ok(self.map.lock().unwrap().clone());
            }
            if change.is_orderly && self.refuses_to_leave.load(Ordering::SeqCst) {
                self.refusals.fetch_add(1, Ordering::SeqCst);
                return Ok(self.map.lock().unwrap().clone());
            }
            if change.state != MemberState::InSync && self.is_last(change.target) {
                return Err(Error::new(Errno::EBUSY, "it is the last reachable member in sync"));
            }
            self.changes.lock().unwrap().push(change.clone());
            let is_leaving =
                self.group().leaving == Some(change.target) && change.state == MemberState::NeedsRebuild;
            let map = match is_leaving {
                true => self.remove_member(change.target, change.is_orderly),
                false => self.set(change.target.0, change.state),
            };
            self.wait_until_known().await?;
            Ok(map)
        })
    }

    /// Acts like the metadata service: sends its own requests to the primary.
    fn reconcile_group(&self, _: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            if !self.has_metadata.load(Ordering::SeqCst) {
                return Err(Error::new(Errno::EAGAIN, "the metadata service isn't there yet"));
            }
            let channels = self.channels.lock().unwrap().clone().unwrap();
            for ino in touched.files {
                let len = self.files.lock().unwrap().get(&ino).copied();
                let op = len.map_or(StorageOp::Delete, |len| StorageOp::Truncate { len });
                let group = self.group();
                let in_group = GroupContext { group: GROUP, version: group.since, role: GroupRole::Primary };
                let request = StorageRequest {
                    group: Some(in_group),
                    ..StorageRequest::new(SessionId(0), group.primary().unwrap(), ino, op)
                };
                channels.call(request, None).await?;
            }
            Ok(())
        })
    }
}

/// State of the link to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkState {
    #[default]
    Open,
    /// Connections are refused.
    Closed,
    /// Requests aren't answered.
    Silent,
    /// Requests arrive when [`Link::late`] is set.
    Late,
}

/// The link to a node, with counters of its traffic.
#[derive(Default)]
pub struct Link {
    pub service: Mutex<Option<Arc<StorageService>>>,
    pub lease: Mutex<Option<Arc<ServingLease>>>,
    pub state: Mutex<LinkState>,
    /// Delays every other request for a moment, so that requests overtake each other.
    pub jitter: AtomicBool,
    pub late: rt::sync::Event,
    passed: AtomicU64,
    /// Number of the primary's changes that still arrive; the next one never does, and signals
    /// that.
    pub changes_left: Mutex<Option<u64>>,
    pub is_at_end: AtomicBool,
    /// Resync data, bytes.
    pub resynced: AtomicU64,
    /// Called for each answered request, before the answer is returned.
    pub after: Mutex<Option<After>>,
}

pub type After = Box<dyn FnMut(&StorageRequest) + Send>;

impl Handler<StorageRequest, StorageReply> for Link {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(async move {
            let passed = self.passed.fetch_add(1, Ordering::SeqCst);
            if self.jitter.load(Ordering::SeqCst) {
                rt::sleep(Duration::from_micros(passed * 7919 % 700)).await;
            }
            let state = *self.state.lock().unwrap();
            match state {
                LinkState::Open => {}
                LinkState::Closed => return Err(Error::new(Errno::EHOSTDOWN, "the node is down")),
                LinkState::Silent => std::future::pending().await,
                LinkState::Late => self.late.wait().await,
            }
            if is_change_of_member(&request) && self.is_last() {
                std::future::pending::<()>().await;
            }
            if request.group.is_some_and(|group| group.role == GroupRole::Resync) {
                let len = payload.as_ref().map_or(0, IoBuf::len);
                self.resynced.fetch_add(len as u64, Ordering::SeqCst);
            }
            let Some(service) = self.service.lock().unwrap().clone() else {
                return Err(Error::new(Errno::EHOSTDOWN, "the node is stopped"));
            };
            let asked = request.clone();
            let answer = service.handle(request, payload).await;
            if let Some(after) = self.after.lock().unwrap().as_mut() {
                after(&asked);
            }
            answer
        })
    }
}

/// Whether a request is a change that the primary sends to a member.
fn is_change_of_member(request: &StorageRequest) -> bool {
    let is_look = matches!(
        request.op,
        StorageOp::Read { .. } | StorageOp::Stat | StorageOp::Seek { .. } | StorageOp::Survey { .. }
    );
    let is_of_member = |group: GroupContext| matches!(group.role, GroupRole::Member { .. });
    !is_look && request.op != StorageOp::Committed && request.group.is_some_and(is_of_member)
}

impl Link {
    /// Whether no more changes arrive.
    fn is_last(&self) -> bool {
        let mut left = self.changes_left.lock().unwrap();
        if *left == Some(0) {
            self.is_at_end.store(true, Ordering::SeqCst);
        }
        *left = left.map(|left| left.saturating_sub(1));
        self.is_at_end.load(Ordering::SeqCst)
    }
}

pub struct Cluster {
    pub dir: PathBuf,
    pub management: Arc<Management>,
    pub links: BTreeMap<TargetId, Arc<Link>>,
    ways: Arc<StorageChannels>,
}

/// Opens the store of a target; creates it if absent.
async fn open_store(dir: &Path, target: TargetId) -> Arc<Store> {
    let dir = dir.join(target.to_string());
    match rt::read_dir(&dir).await.is_ok() {
        true => targets::open(&dir, target).await,
        false => targets::create(&dir, target, 0).await,
    }
}

impl Cluster {
    /// Starts a node for each target. Members are resynced only after [`Cluster::enable_resync`].
    pub async fn start(dir: &Path, management: Arc<Management>) -> Arc<Cluster> {
        let targets: Vec<TargetId> = management.map.lock().unwrap().targets.iter().map(|t| t.id).collect();
        let links: BTreeMap<TargetId, Arc<Link>> =
            targets.iter().map(|id| (*id, Arc::<Link>::default())).collect();
        let way = |(id, link): (&TargetId, &Arc<Link>)| (*id, Channel::in_process(link.clone() as Arc<_>));
        let channels = Arc::new(links.iter().map(way).collect::<StorageChannels>());
        *management.channels.lock().unwrap() = Some(channels.clone());
        let cluster = Arc::new(Cluster { dir: dir.to_path_buf(), management, links, ways: channels });
        for target in targets {
            let lease = Arc::new(ServingLease::forever());
            let service = cluster.serve(target, lease.clone()).await;
            *cluster.links[&target].service.lock().unwrap() = Some(service);
            *cluster.links[&target].lease.lock().unwrap() = Some(lease);
        }
        cluster
    }

    async fn serve(&self, target: TargetId, lease: Arc<ServingLease>) -> Arc<StorageService> {
        let map = MapHandle::new(self.management.map.lock().unwrap().clone());
        self.management.nodes.lock().unwrap().insert(target, map.clone());
        let service = Arc::new(StorageService::under_lease(lease));
        service.serve_groups(GroupPeers {
            map,
            members: self.ways.clone(),
            management: self.management.clone(),
        });
        service.add(open_store(&self.dir, target).await).unwrap();
        // Requests to a replica that can't be opened get the error.
        let _ = service.open_groups(target).await;
        service.open_to_clients(target);
        service.set_targets_complete();
        service
    }

    /// Shuts a node down cleanly.
    pub async fn stop(&self, target: u32) {
        let service = self.link(target).service.lock().unwrap().take().unwrap();
        service.close_groups().await.unwrap();
        for store in service.stores() {
            store.close().await.unwrap();
        }
    }

    /// Starts the node of a stopped target. Management isn't informed, so the member keeps its
    /// state.
    pub async fn restart(&self, target: u32) {
        let service = self.serve(TargetId(target), Arc::new(ServingLease::forever())).await;
        *self.link(target).service.lock().unwrap() = Some(service);
    }

    /// Enables scrubs of the targets.
    pub fn enable_scrubs(&self) {
        for (target, link) in &self.links {
            let service = link.service.lock().unwrap().clone().unwrap();
            rt::spawn(StorageService::run_scrubs(service, self.map_of(target.0)));
        }
    }

    /// Enables resync of members.
    pub fn enable_resync(&self) {
        for link in self.links.values() {
            let service = link.service.lock().unwrap().clone().unwrap();
            rt::spawn(StorageService::run_group_resyncs(service));
        }
    }

    pub fn link(&self, target: u32) -> &Link {
        &self.links[&TargetId(target)]
    }

    pub fn set_link(&self, target: u32, state: LinkState) {
        *self.link(target).state.lock().unwrap() = state;
    }

    /// The map of this process, apart from the others.
    pub fn map_of(&self, target: u32) -> MapHandle {
        self.management.nodes.lock().unwrap()[&TargetId(target)].clone()
    }

    pub async fn call(&self, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        self.ways.call(request, payload).await
    }

    /// Sends one request about the group to one target.
    pub async fn ask_one(
        &self,
        target: u32,
        (since, part): (u64, GroupRole),
        (session, number): (u64, Option<SlotSequence>),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let in_group = GroupContext { group: GROUP, version: Epoch(since), role: part };
        let request = StorageRequest {
            group: Some(in_group),
            slot_sequence: number,
            ..StorageRequest::new(SessionId(session), TargetId(target), INO, op)
        };
        self.ways.call(request, payload).await
    }

    /// Sends a request to the group like a client: to its primary, and to another one when the
    /// group has changed.
    pub async fn ask_file(
        &self,
        ino: ChunkFileId,
        (session, number): (u64, Option<SlotSequence>),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        loop {
            let group = self.management.group();
            let in_group = GroupContext { group: GROUP, version: group.since, role: GroupRole::Primary };
            let request = StorageRequest {
                group: Some(in_group),
                slot_sequence: number,
                ..StorageRequest::new(SessionId(session), group.primary().unwrap(), ino, op.clone())
            };
            match self.ways.call(request, payload.clone()).await {
                Err(error) if error.errno == Refusal::GroupVersionMismatch => {
                    rt::sleep(Duration::from_millis(5)).await
                }
                answer => return answer,
            }
        }
    }

    pub async fn write(&self, ino: ChunkFileId, session: u64, offset: u64, data: &[u8]) {
        let op = StorageOp::Write { offset, path: Way::Cached, durable: false };
        let data = IoBuf::from_slice(data);
        self.ask_file(ino, (session, None), op, Some(data)).await.unwrap();
    }

    /// Sends a request with a known lower bound of the chunk file's length.
    pub async fn ask_known(
        &self,
        (ino, known): (ChunkFileId, u64),
        op: StorageOp,
        payload: IoBuf,
    ) -> Result<StorageReply> {
        loop {
            let group = self.management.group();
            let in_group = GroupContext { group: GROUP, version: group.since, role: GroupRole::Primary };
            let request = StorageRequest {
                group: Some(in_group),
                length_bound: known,
                ..StorageRequest::new(SessionId(3), group.primary().unwrap(), ino, op.clone())
            };
            match self.ways.call(request, Some(payload.clone())).await {
                Err(error) if error.errno == Refusal::GroupVersionMismatch => {
                    rt::sleep(Duration::from_millis(5)).await
                }
                answer => return answer,
            }
        }
    }

    /// Reads like a client that has chosen a member.
    pub async fn read_at(&self, target: u32, since: u64, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let buf = IoBuf::alloc(len);
        let op = StorageOp::Read { offset, path: Way::Cached };
        let asked = self.ask_one(target, (since, GroupRole::Primary), (3, None), op, Some(buf.clone())).await;
        asked.map(|_| buf.as_slice().to_vec()).map_err(|error| error.errno)
    }

    /// Reads a file from the primary.
    pub async fn read(&self, ino: ChunkFileId, len: usize) -> Vec<u8> {
        let buf = IoBuf::alloc(len);
        let op = StorageOp::Read { offset: 0, path: Way::Cached };
        self.ask_file(ino, (3, None), op, Some(buf.clone())).await.unwrap();
        buf.as_slice().to_vec()
    }

    /// Returns a target's files of the group with their content, read without the service.
    pub async fn on_disk(&self, target: u32) -> BTreeMap<ChunkFileId, Vec<u8>> {
        files_of(&self.dir, target).await
    }

    /// Returns the modification time of a file on a target.
    pub async fn mtime(&self, target: u32, ino: ChunkFileId) -> Timestamp {
        let store = Store::group_dir(&self.dir.join(target.to_string()), GROUP);
        open_to_read(&Store::chunk_file_path(&store, ino)).await.stat().await.unwrap().mtime
    }

    /// Whether a target has a store of the group.
    pub async fn has_group(&self, target: u32) -> bool {
        rt::read_dir(&Store::group_dir(&self.dir.join(target.to_string()), GROUP)).await.is_ok()
    }

    /// Waits until a condition holds, for a minute at most.
    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        self.until_found(what, async || is_so()).await;
    }

    /// The same for conditions on disk.
    pub async fn until_found(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        for _ in 0..6000 {
            if is_so().await {
                return;
            }
            rt::sleep(Duration::from_millis(10)).await;
        }
        let changes = self.management.changes.lock().unwrap();
        let last = changes.last().map(|change| &change.reason);
        panic!(
            "a minute has passed without this: {what}; {:?}, the last since {last:?}",
            self.management.group()
        );
    }

    /// Waits until all members are in sync, and compares their replicas.
    pub async fn until_in_sync(&self) {
        self.until("the group is in step", || !self.management.group().is_degraded()).await;
        self.require_equal().await;
    }

    pub async fn require_equal(&self) {
        let members = self.management.group().members;
        let own = members[0];
        let first = self.on_disk(own.0).await;
        for target in members.iter().skip(1) {
            let other = self.on_disk(target.0).await;
            let names = |files: &BTreeMap<ChunkFileId, Vec<u8>>| -> Vec<ChunkFileId> {
                files.keys().copied().collect()
            };
            assert_eq!(names(&first), names(&other), "files of targets {own} and {target}");
            for (ino, data) in &first {
                let (len, other_len) = (data.len(), other[ino].len());
                assert_eq!(len, other_len, "length of inode {ino} on targets {own} and {target}");
                let at = data.iter().zip(&other[ino]).position(|(a, b)| a != b);
                assert_eq!(at, None, "inode {ino} differs on targets {own} and {target}");
            }
        }
    }
}

/// Returns the files of the group below a target's directory, with their content.
pub async fn files_of(dir: &Path, target: u32) -> BTreeMap<ChunkFileId, Vec<u8>> {
    let mut folders = vec![Store::group_dir(&dir.join(target.to_string()), GROUP).join("chunks")];
    for _ in 0..FOLDER_DEPTH {
        folders = entries(&folders).await;
    }
    let mut files = BTreeMap::new();
    for path in entries(&folders).await.iter().filter(|path| path.extension().is_none()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let ino = u64::from_str_radix(name, 16).unwrap();
        files.insert(ChunkFileId(ino), content_of(path).await);
    }
    files
}

/// Returns the entries of some directories.
async fn entries(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        found.extend(rt::read_dir(folder).await.unwrap().into_iter().map(|name| folder.join(name)));
    }
    found
}

async fn open_to_read(path: &Path) -> File {
    File::open(path, OpenOptions { read: true, ..OpenOptions::default() }).await.unwrap()
}

async fn content_of(path: &Path) -> Vec<u8> {
    let file = open_to_read(path).await;
    let buf = IoBuf::alloc(file.stat().await.unwrap().len as usize);
    let len = file.read_at(buf.clone(), 0).await.unwrap();
    buf.as_slice()[..len].to_vec()
}

/// Runs a test on a simulated machine with `members` members, all of them in sync.
pub fn with_members<F: Future<Output = ()> + 'static>(
    members: u32,
    test: impl FnOnce(Arc<Cluster>) -> F + 'static,
) {
    with_others(members, 0, test);
}

/// The same with `others` additional targets that are in no group.
pub fn with_others<F: Future<Output = ()> + 'static>(
    members: u32,
    others: u32,
    test: impl FnOnce(Arc<Cluster>) -> F + 'static,
) {
    let management = Management::with_others(members, others);
    let run = async move { test(Cluster::start(Path::new(targets::SIMULATED_DIR), management).await).await };
    Machine::new(1).run(run).unwrap();
}

/// The same on the disk of this machine, for tests that change files without the service.
pub fn with_members_on_disk<F: Future<Output = ()>>(
    members: u32,
    test: impl FnOnce(Arc<Cluster>) -> F + 'static,
) {
    with_others_on_disk(members, 0, test);
}

/// The same with `others` additional targets that are in no group.
pub fn with_others_on_disk<F: Future<Output = ()>>(
    members: u32,
    others: u32,
    test: impl FnOnce(Arc<Cluster>) -> F + 'static,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    rt::block_on(async move {
        test(Cluster::start(&path, Management::with_others(members, others)).await).await;
    })
    .unwrap();
}
