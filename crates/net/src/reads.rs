//! Reads of mirrored groups.
//!
//! Every good member may answer them, so one is chosen: the nearest (on this machine, in this
//! process's rack, in one of its networks); of those that are equally near one by the region that
//! is read, so that a large file is read from all of them and each part of it is in the cache of
//! one; unless that one has much more to do for this process than another, or one in this rack very
//! much more than one in another. A member that can't tell sends the reader on (`EREMOTE`), one
//! that is silent is waited for as long as it takes, but after a moment others are asked beside it;
//! and where one of them has refused for now (`EREMCHG`), the silent one is left, and the primary
//! asked again.
//!
//! A member that answers counts at that moment, by its lease and by the version of the group that
//! the request carries. So whoever is asked gives no less than what was acknowledged to anybody.

use crate::either::{Either, either};
use crate::groups::{ToGroup, is_of_the_member};
use crate::limits::{BUSIER_BY, BUSIER_THAN_OTHER_RACKS_BY, READ_PATIENCE, READ_REGION_BYTES};
use crate::loads::UnderWay;
use crate::{Distance, StorageChannels, racks};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::task::Poll;
use types::{
    ClusterMap, Errno, Error, Group, InodeId, MemberState, Result, SessionId, TargetId, TargetState,
};
use wire::{InGroup, Part, StorageOp, StorageReply, StorageRequest};

/// Whether any good member may answer a request. Services ask the primary: some of their questions
/// tell it something, too.
pub(crate) fn is_for_any(request: &StorageRequest) -> bool {
    let looks = matches!(request.op, StorageOp::Read { .. } | StorageOp::Stat | StorageOp::Seek { .. });
    looks && request.session != SessionId(0)
}

/// Whether a member has refused for its version of the group: it may tell when it is asked again.
#[derive(Default)]
struct Refused(Cell<bool>);

impl Refused {
    /// Whether an answer says nothing but that another member may know more; it is noted which kind
    /// that is.
    fn is_elsewhere(&self, answer: &Result<StorageReply>) -> bool {
        let Err(Error { errno, .. }) = *answer else { return false };
        self.0.set(self.0.get() || errno == Errno::EREMCHG);
        matches!(errno, Errno::EREMOTE | Errno::EREMCHG) || is_of_the_member(errno)
    }
}

/// What became of a question to one member.
enum Outcome {
    /// This is the answer of the group, an error included.
    Answer(Result<StorageReply>),
    /// Another member may know more.
    Elsewhere,
    /// The group has changed or its primary is to be asked again, or it is too late.
    Over,
}

impl StorageChannels {
    /// Asks good members, one after the other, until one answers; `None` when all have been asked,
    /// when the group has changed, and when one is silent while another may tell if it is asked
    /// again.
    pub(crate) async fn ask_any(
        &self,
        to: ToGroup<'_>,
        deadline_ns: u64,
        request: &StorageRequest,
        payload: &Option<IoBuf>,
    ) -> Option<Result<StorageReply>> {
        let map = to.current();
        let group = map.group(to.group)?;
        let order = self.order(&map, group, request);
        let part = Part::Primary;
        let request = StorageRequest {
            group: Some(InGroup { group: group.id, since: group.since, part }),
            ..request.clone()
        };
        let refused = Refused::default();
        for (at, member) in order.iter().enumerate() {
            let asked = StorageRequest { target: *member, ..request.clone() };
            let others = (&order[at + 1..], &refused);
            match self.ask_with_help(to, deadline_ns, asked, payload, others).await {
                Outcome::Answer(answer) => return Some(answer),
                Outcome::Elsewhere => {}
                Outcome::Over => return None,
            }
        }
        None
    }

    /// The good members in the order in which they are asked: the one that was chosen, then the
    /// primary, which knows most, then the others.
    fn order(&self, map: &ClusterMap, group: &Group, request: &StorageRequest) -> Vec<TargetId> {
        let now_ns = rt::monotonic_ns();
        let good = group.with_states().filter(|(_, state)| *state == MemberState::Good).map(|(id, _)| id);
        let mut order: Vec<TargetId> = good.collect();
        let is_avoided = |id: TargetId| {
            let is_online = map.target(id).is_some_and(|target| target.state == TargetState::Online);
            !is_online || self.loads().is_avoided(id, now_ns)
        };
        let chosen = match request.op {
            StorageOp::Read { offset, .. } => {
                let some = order.iter().any(|id| !is_avoided(*id));
                let usable: Vec<TargetId> =
                    order.iter().copied().filter(|id| !some || !is_avoided(*id)).collect();
                self.near_one(map, &usable, request.ino, offset)
            }
            // What a file takes on disk differs a little between copies: who looks twice shall see
            // the same.
            _ => order.iter().copied().min_by_key(|id| is_avoided(*id)),
        };
        if let Some(at) = chosen.and_then(|chosen| order.iter().position(|id| *id == chosen)) {
            order[..=at].rotate_right(1);
        }
        order
    }

    /// One of the nearest.
    fn near_one(&self, map: &ClusterMap, usable: &[TargetId], ino: InodeId, offset: u64) -> Option<TargetId> {
        let rack = self.own_rack().name(map);
        let nearness = |id: TargetId| {
            let distance = self.distance(id);
            let is_here = distance <= Distance::SameHost;
            let is_in_rack = rack.as_deref().is_some_and(|rack| racks::is_in(map, id, rack));
            (!is_here, !is_in_rack, distance)
        };
        let best = usable.iter().map(|id| nearness(*id)).min()?;
        let nearest: Vec<TargetId> = usable.iter().copied().filter(|id| nearness(*id) == best).collect();
        let chosen = self.one_of(&nearest, ino, offset)?;
        if (best.0, best.1) == (true, false) {
            let load = |id: &TargetId| self.loads().under_way(*id);
            let least = usable.iter().min_by_key(|id| load(id))?;
            if load(&chosen) > load(least) + BUSIER_THAN_OTHER_RACKS_BY {
                return Some(*least);
            }
        }
        Some(chosen)
    }

    /// One of equals.
    fn one_of(&self, equals: &[TargetId], ino: InodeId, offset: u64) -> Option<TargetId> {
        let region = offset / READ_REGION_BYTES + ino.0;
        let by_region = *equals.get(usize::try_from(region).unwrap_or(0) % equals.len().max(1))?;
        let load = |id: &TargetId| self.loads().under_way(*id);
        let least = equals.iter().min_by_key(|id| load(id))?;
        if load(&by_region) > load(least) + BUSIER_BY { Some(*least) } else { Some(by_region) }
    }

    /// Asks a member, and others beside it when it is silent.
    async fn ask_with_help(
        &self,
        to: ToGroup<'_>,
        deadline_ns: u64,
        request: StorageRequest,
        payload: &Option<IoBuf>,
        (others, refused): (&[TargetId], &Refused),
    ) -> Outcome {
        let found = RefCell::new(None);
        let since = request.group.map(|group| group.since);
        let under_way = self.loads().begin(request.target);
        let help = async {
            rt::sleep(READ_PATIENCE).await;
            under_way.is_silent();
            // All at once, and for as long as it takes: any of them may be busy.
            let asked = others.iter().map(|other| StorageRequest { target: *other, ..request.clone() });
            let answers = asked.map(|asked| self.ask_apart(asked, payload)).collect();
            match either(first_of(answers, refused), to.has_changed(since, deadline_ns)).await {
                Either::First(Some(answer)) => *found.borrow_mut() = Some(answer),
                Either::First(None) if refused.0.get() => {}
                Either::First(None) => to.has_changed(since, deadline_ns).await,
                Either::Second(()) => {}
            }
        };
        let answer = self.call_unless(Box::pin(help), request.clone(), payload.clone()).await;
        match (answer, found.take()) {
            (Some(answer), _) => {
                if !matches!(&answer, Err(error) if is_of_the_member(error.errno)) {
                    under_way.has_answered();
                }
                if refused.is_elsewhere(&answer) { Outcome::Elsewhere } else { Outcome::Answer(answer) }
            }
            (None, Some((answer, buf))) => {
                if let (Some(payload), Some(buf), Ok(_)) = (payload, buf, &answer) {
                    payload.copy_from(0, buf.as_slice());
                }
                Outcome::Answer(answer)
            }
            (None, None) => Outcome::Over,
        }
    }

    /// Asks a member with a buffer of its own, which is in use as long as the answer may come,
    /// whoever waits for it.
    async fn ask_apart(&self, request: StorageRequest, payload: &Option<IoBuf>) -> Apart {
        let buf = payload.as_ref().map(|payload| IoBuf::alloc(payload.len()));
        let under_way: UnderWay = self.loads().begin(request.target);
        let answer = match self.way(request.target) {
            Ok(channel) => {
                let into = buf.clone();
                crate::run_apart(async move {
                    let answer = channel.call(request, into).await;
                    drop(under_way);
                    answer
                })
                .await
            }
            Err(error) => Err(error),
        };
        (answer, buf)
    }
}

/// An answer, and the buffer that it came in.
type Apart = (Result<StorageReply>, Option<IoBuf>);

/// The first answer of those that aren't about the member alone; `None` when there is none.
async fn first_of(answers: Vec<impl Future<Output = Apart>>, refused: &Refused) -> Option<Apart> {
    let mut waiting: Vec<_> = answers.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        let mut at = 0;
        while at < waiting.len() {
            match waiting[at].as_mut().poll(context) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) if refused.is_elsewhere(&answer.0) => drop(waiting.swap_remove(at)),
                Poll::Ready(answer) => return Poll::Ready(Some(answer)),
            }
        }
        if waiting.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
