//! Reads of mirrored groups.
//!
//! Any in-sync member may answer a read. A client chooses the nearest one: on this machine, in this
//! process's rack, on one of its networks. Among equally near members the region that is read
//! decides, so that a large file is read from all of them and each part is cached by one. A member
//! with many more requests of this process under way is passed over for a less busy one. For a less
//! busy member in another rack the difference must be larger still. A member that can't answer
//! redirects the reader (`RedirectToPrimary`). A member that doesn't answer is waited for without
//! limit, but after a moment other members are asked as well. If one of these refuses for now
//! (`GroupVersionMismatch`), the silent one is abandoned, and the primary is asked again.
//!
//! A member that answers is authoritative at that moment, by its lease and by the group version in
//! the request. So every member returns at least what was acknowledged to any client.

use crate::group_requests::{GroupDestination, is_member_error};
use crate::limits::{HEDGE_DELAY, MAX_LOAD_IMBALANCE, MAX_LOAD_IMBALANCE_BETWEEN_RACKS, READ_REGION_BYTES};
use crate::target_load::InFlightRequest;
use crate::{StorageChannels, own_rack};
use net::Distance;
use rt::Either;
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::task::Poll;
use types::{
    ChunkFileId, ClusterMap, Errno, Error, Group, MemberState, Refusal, Result, SessionId, TargetId,
    TargetState,
};
use wire::{GroupContext, GroupRole, StorageOp, StorageReply, StorageRequest};

/// Whether any in-sync member may answer a request. Services always ask the primary: some of their
/// requests also change its state.
pub(crate) fn may_read_any_replica(request: &StorageRequest) -> bool {
    request.op.spec().is_for_any_replica() && request.session != SessionId(0)
}

/// Whether a member has refused for its group version: it may answer when it is asked again.
#[derive(Default)]
struct VersionRefusals(Cell<bool>);

impl VersionRefusals {
    /// Whether an answer only means that another member may know more. Notes a refusal for the
    /// group version.
    fn should_try_another(&self, answer: &Result<StorageReply>) -> bool {
        let Err(Error { errno, .. }) = *answer else { return false };
        self.0.set(self.0.get() || errno == Refusal::GroupVersionMismatch);
        matches!(errno, Errno::Refusal(Refusal::RedirectToPrimary | Refusal::GroupVersionMismatch))
            || is_member_error(errno)
    }
}

/// Outcome of a request to one member.
enum MemberOutcome {
    /// The answer of the group, including errors.
    Answer(Result<StorageReply>),
    /// Another member may know more.
    TryAnother,
    /// The group has changed, its primary must be asked again, or it is too late.
    GiveUp,
}

impl StorageChannels {
    /// Asks in-sync members, one after the other, until one answers. Returns `None` when all have
    /// been asked, when the group has changed, and when one is silent while another may answer a
    /// retry.
    pub(crate) async fn read_any_replica(
        &self,
        to: GroupDestination<'_>,
        deadline_ns: u64,
        request: &StorageRequest,
        payload: &Option<IoBuf>,
    ) -> Option<Result<StorageReply>> {
        let map = to.current();
        let group = map.group(to.group)?;
        let order = self.order(&map, group, request);
        let role = GroupRole::Primary;
        let request = StorageRequest {
            group: Some(GroupContext { group: group.id, version: group.since, role }),
            ..request.clone()
        };
        let refusals = VersionRefusals::default();
        for (at, member) in order.iter().enumerate() {
            let asked = StorageRequest { target: *member, ..request.clone() };
            let others = (&order[at + 1..], &refusals);
            match self.ask_with_hedging(to, deadline_ns, asked, payload, others).await {
                MemberOutcome::Answer(answer) => return Some(answer),
                MemberOutcome::TryAnother => {}
                MemberOutcome::GiveUp => return None,
            }
        }
        None
    }

    /// The in-sync members in the order in which they are asked: the chosen one, the primary, which
    /// knows most, then the others.
    fn order(&self, map: &ClusterMap, group: &Group, request: &StorageRequest) -> Vec<TargetId> {
        let now_ns = rt::monotonic_ns();
        let in_sync =
            group.members_with_states().filter(|(_, state)| *state == MemberState::InSync).map(|(id, _)| id);
        let mut order: Vec<TargetId> = in_sync.collect();
        let is_avoided = |id: TargetId| {
            let is_online = map.target(id).is_some_and(|target| target.state == TargetState::Online);
            !is_online || self.loads().was_unresponsive(id, now_ns)
        };
        let chosen = match request.op {
            StorageOp::Read { offset, .. } => {
                let some = order.iter().any(|id| !is_avoided(*id));
                let usable: Vec<TargetId> =
                    order.iter().copied().filter(|id| !some || !is_avoided(*id)).collect();
                self.choose_nearest(map, &usable, request.ino, offset)
            }
            // The allocated size of a file differs slightly between replicas: repeated `stat` calls
            // must return the same.
            _ => order.iter().copied().min_by_key(|id| is_avoided(*id)),
        };
        if let Some(at) = chosen.and_then(|chosen| order.iter().position(|id| *id == chosen)) {
            order[..=at].rotate_right(1);
        }
        order
    }

    /// One of the nearest members.
    fn choose_nearest(
        &self,
        map: &ClusterMap,
        usable: &[TargetId],
        ino: ChunkFileId,
        offset: u64,
    ) -> Option<TargetId> {
        let rack = self.own_rack().name(map);
        let nearness = |id: TargetId| {
            let distance = self.distance(id);
            let is_same_host = distance <= Distance::SameHost;
            let is_in_rack = rack.as_deref().is_some_and(|rack| own_rack::is_target_in_rack(map, id, rack));
            (!is_same_host, !is_in_rack, distance)
        };
        let best = usable.iter().map(|id| nearness(*id)).min()?;
        let nearest: Vec<TargetId> = usable.iter().copied().filter(|id| nearness(*id) == best).collect();
        let chosen = self.choose_by_region(&nearest, ino, offset)?;
        if (best.0, best.1) == (true, false) {
            let load = |id: &TargetId| self.loads().in_flight(*id);
            let least = usable.iter().min_by_key(|id| load(id))?;
            if load(&chosen) > load(least) + MAX_LOAD_IMBALANCE_BETWEEN_RACKS {
                return Some(*least);
            }
        }
        Some(chosen)
    }

    /// One of equally near members.
    fn choose_by_region(&self, equals: &[TargetId], ino: ChunkFileId, offset: u64) -> Option<TargetId> {
        let region = offset / READ_REGION_BYTES + ino.0;
        let by_region = *equals.get(usize::try_from(region).unwrap_or(0) % equals.len().max(1))?;
        let load = |id: &TargetId| self.loads().in_flight(*id);
        let least = equals.iter().min_by_key(|id| load(id))?;
        if load(&by_region) > load(least) + MAX_LOAD_IMBALANCE { Some(*least) } else { Some(by_region) }
    }

    /// Asks a member, and the others as well when it doesn't answer in time.
    async fn ask_with_hedging(
        &self,
        to: GroupDestination<'_>,
        deadline_ns: u64,
        request: StorageRequest,
        payload: &Option<IoBuf>,
        (others, refusals): (&[TargetId], &VersionRefusals),
    ) -> MemberOutcome {
        let hedged_answer = RefCell::new(None);
        let since = request.group.map(|group| group.version);
        let in_flight = self.loads().begin(request.target);
        let hedge = async {
            rt::sleep(HEDGE_DELAY).await;
            in_flight.mark_unresponsive();
            // All at once, and without a time limit: any of them may be busy.
            let asked = others.iter().map(|other| StorageRequest { target: *other, ..request.clone() });
            let answers = asked.map(|asked| self.send_hedge(asked, payload)).collect();
            match rt::select(first_conclusive(answers, refusals), to.wait_for_change(since, deadline_ns))
                .await
            {
                Either::First(Some(answer)) => *hedged_answer.borrow_mut() = Some(answer),
                Either::First(None) if refusals.0.get() => {}
                Either::First(None) => to.wait_for_change(since, deadline_ns).await,
                Either::Second(()) => {}
            }
        };
        let answer = self.call_or_abandon(Box::pin(hedge), request.clone(), payload.clone()).await;
        match (answer, hedged_answer.take()) {
            (Some(answer), _) => {
                if !matches!(&answer, Err(error) if is_member_error(error.errno)) {
                    in_flight.mark_responsive();
                }
                if refusals.should_try_another(&answer) {
                    MemberOutcome::TryAnother
                } else {
                    MemberOutcome::Answer(answer)
                }
            }
            (None, Some((answer, buf))) => {
                if let (Some(payload), Some(buf), Ok(_)) = (payload, buf, &answer) {
                    payload.copy_from(0, buf.as_slice());
                }
                MemberOutcome::Answer(answer)
            }
            (None, None) => MemberOutcome::GiveUp,
        }
    }

    /// Asks a member with a separate buffer, which stays in use as long as the answer may arrive,
    /// even after its caller has left.
    async fn send_hedge(&self, request: StorageRequest, payload: &Option<IoBuf>) -> HedgedAnswer {
        let buf = payload.as_ref().map(|payload| IoBuf::alloc(payload.len()));
        let in_flight: InFlightRequest = self.loads().begin(request.target);
        let answer = match self.channel_to(request.target) {
            Ok(channel) => {
                let into = buf.clone();
                net::run_detached(async move {
                    let answer = channel.call(request, into).await;
                    drop(in_flight);
                    answer
                })
                .await
            }
            Err(error) => Err(error),
        };
        (answer, buf)
    }
}

/// An answer, and the buffer that it was received into.
type HedgedAnswer = (Result<StorageReply>, Option<IoBuf>);

/// The first answer that doesn't concern the member alone; `None` when there is none.
async fn first_conclusive(
    answers: Vec<impl Future<Output = HedgedAnswer>>,
    refusals: &VersionRefusals,
) -> Option<HedgedAnswer> {
    let mut waiting: Vec<_> = answers.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        let mut at = 0;
        while at < waiting.len() {
            match waiting[at].as_mut().poll(context) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) if refusals.should_try_another(&answer.0) => {
                    drop(waiting.swap_remove(at))
                }
                Poll::Ready(answer) => return Poll::Ready(Some(answer)),
            }
        }
        if waiting.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
