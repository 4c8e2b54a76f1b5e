//! Groups as clients see them. The primary executes requests on all members that are in sync, and
//! then answers; each of these members serves reads. A member that isn't the primary, or not in
//! sync, in the request's group version refuses it. Each replica is a real store behind a real
//! storage service, with its own slots, epochs and fences.

use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use testkit::map::update;
use types::{Errno, GroupId, MapHandle, MemberState, Refusal, Result, TargetId};
use wire::{GroupContext, GroupRole, StorageOp, StorageReply, StorageRequest};

/// The name of a replica as a target of its own.
pub(crate) fn copy(target: TargetId, group: GroupId) -> TargetId {
    TargetId(target.0 * 100 + group.0)
}

/// Time-out of a request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How a target handles requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behaviour {
    Answers,
    /// It neither executes nor answers.
    Hangs,
    /// It executes requests, and doesn't answer.
    LosesAnswers,
}

/// The storage services of all targets.
pub(crate) struct Groups {
    service: Arc<StorageService>,
    /// As the members know it; clients may have an older one.
    pub(crate) map: MapHandle,
    ways: Mutex<BTreeMap<TargetId, Behaviour>>,
    changed: Event,
    asked: Mutex<Vec<StorageRequest>>,
    held: Mutex<Option<Held>>,
}

/// Selects the requests that are held up before they are executed.
type Held = Box<dyn Fn(&StorageRequest) -> bool + Send>;

impl Groups {
    pub(crate) fn new(service: Arc<StorageService>, map: MapHandle) -> Arc<Groups> {
        let (ways, asked) = (Mutex::default(), Mutex::default());
        Arc::new(Groups { service, map, ways, changed: Event::new(), asked, held: Mutex::default() })
    }

    /// Holds up matching requests, and releases those that no longer match.
    pub(crate) fn hold(&self, which: impl Fn(&StorageRequest) -> bool + Send + 'static) {
        *self.held.lock() = Some(Box::new(which));
        self.changed.set();
        self.changed.clear();
    }

    /// Waits for a matching request.
    pub(crate) async fn wait_for_request(&self, what: impl Fn(&StorageRequest) -> bool) -> StorageRequest {
        for _ in 0..60_000 {
            if let Some(found) = self.requests().into_iter().find(&what) {
                return found;
            }
            rt::sleep(Duration::from_millis(1)).await;
        }
        panic!("nobody asks for it")
    }

    async fn wait_while_held(&self, request: &StorageRequest) {
        loop {
            let changed = self.changed.wait();
            if !self.held.lock().as_ref().is_some_and(|held| held(request)) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn set_behaviour(&self, target: u32, way: Behaviour) {
        self.ways.lock().insert(TargetId(target), way);
        self.changed.set();
        self.changed.clear();
    }

    /// All requests so far, in order.
    pub(crate) fn requests(&self) -> Vec<StorageRequest> {
        std::mem::take(&mut *self.asked.lock())
    }

    fn way(&self, target: TargetId) -> Behaviour {
        self.ways.lock().get(&target).copied().unwrap_or(Behaviour::Answers)
    }

    async fn wait_while(&self, target: TargetId, is: impl Fn(Behaviour) -> bool) {
        loop {
            let changed = self.changed.wait();
            if !is(self.way(target)) {
                return;
            }
            changed.await;
        }
    }

    /// Answers within the time-out, like a connection.
    async fn answer_in_time(&self, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        let answer = rt::timeout(TIMEOUT, self.answer(request, payload)).await;
        answer.unwrap_or_else(|| Err(Errno::ETIMEDOUT.into()))
    }

    async fn answer(&self, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        self.asked.lock().push(request.clone());
        let target = request.target;
        self.wait_while(target, |way| way == Behaviour::Hangs).await;
        self.wait_while_held(&request).await;
        let answer = match request.group {
            Some(group) => self.in_group(group, &request, payload).await,
            None => self.on_target(&request, payload).await,
        };
        self.wait_while(target, |way| way != Behaviour::Answers).await;
        answer
    }

    async fn in_group(
        &self,
        GroupContext { group: id, version: since, role: part }: GroupContext,
        request: &StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        assert_eq!(part, GroupRole::Primary, "clients and services ask the primary");
        let map = self.map.load();
        let group = map.group(id).unwrap();
        let looks = matches!(request.op, StorageOp::Read { .. } | StorageOp::Stat | StorageOp::Seek { .. });
        let is_client = request.session != types::SessionId(0);
        let is_reader = looks && is_client && group.state_of(request.target) == Some(MemberState::InSync);
        if group.since != since || !(is_reader || group.primary() == Some(request.target)) {
            return Err(Refusal::GroupVersionMismatch.into());
        }
        if looks {
            let request = StorageRequest { target: copy(request.target, id), group: None, ..request.clone() };
            return self.service.handle(request, payload).await;
        }
        let mut answer = Err(Errno::EIO.into());
        let good = group.members_with_states().filter(|(_, state)| *state == MemberState::InSync);
        for (member, _) in good {
            // The primary ejects a member that doesn't answer.
            if member != request.target && self.way(member) != Behaviour::Answers {
                eject(&self.map, id, member);
                continue;
            }
            let request = StorageRequest { target: copy(member, id), group: None, ..request.clone() };
            let done = self.service.handle(request, payload.clone()).await;
            answer = if member == group.primary().unwrap() { done } else { answer };
        }
        // The replicas of a group have one verifier.
        match answer {
            Ok(StorageReply::Done { .. }) => Ok(StorageReply::Done { verifier: 1 }),
            answer => answer,
        }
    }

    /// A target has its own store, and one for each of its groups.
    async fn on_target(&self, request: &StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        let map = self.map.load();
        if matches!(request.op, StorageOp::SyncTarget | StorageOp::Fence { .. }) {
            let has = |group: &&types::Group| {
                group.scheme.spans_targets() && group.members.contains(&request.target)
            };
            for group in map.groups.iter().filter(has) {
                let target = copy(request.target, group.id);
                self.service.handle(StorageRequest { target, ..request.clone() }, None).await?;
            }
        }
        self.service.handle(request.clone(), payload).await
    }
}

/// Ejects a member from a group, as management does.
pub(crate) fn eject(map: &MapHandle, group: GroupId, member: TargetId) {
    update(map, |map| {
        let epoch = map.epoch;
        let group = map.groups.iter_mut().find(|known| known.id == group).unwrap();
        let mut members: Vec<_> = group.members_with_states().collect();
        let at = members.iter().position(|(id, _)| *id == member).unwrap();
        let (is_primary, _) = (group.primary() == Some(member), members[at].1 = MemberState::NeedsResync);
        if is_primary {
            let gone = members.remove(at);
            members.push(gone);
        }
        (group.members, group.states) = members.into_iter().unzip();
        group.since = epoch;
    });
}

impl Handler<StorageRequest, StorageReply> for Groups {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(self.answer_in_time(request, payload))
    }

    /// A request that hangs can be abandoned.
    fn handle_or_abandon<'a>(
        &'a self,
        given_up: LocalFuture<'a, ()>,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Option<Result<StorageReply>>>
    where
        StorageReply: 'a,
    {
        let answer = self.handle(request, payload);
        Box::pin(async move { rt::select(answer, given_up).await.first() })
    }
}
