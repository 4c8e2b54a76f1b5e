//! Requests to mirrored groups.
//!
//! A client sends a group's request to its primary, which the cluster map names. A member that
//! isn't primary, or has another version of the group, refuses with `GroupVersionMismatch`. The
//! request then waits for another map and is sent again. An unreachable primary is waited for only
//! until the map names another one. So a request takes as long as a failover, not as long as the
//! time-out of a call to a dead node. Any in-sync member may answer a client's read (`reads`); if
//! none can, the request goes to the primary.
//!
//! Two primaries may execute the same request, one after the other. The request must tolerate that:
//! by its sequence id, or because no other client sees or changes the affected data meanwhile.

use crate::limits::{ANSWER_GRACE, FIRST_GROUP_BACKOFF, GROUP_WATCH_DELAY, LONGEST_GROUP_BACKOFF};
use crate::replica_reads::may_read_any_replica;
use crate::{StorageChannels, WhenOffline};
use rt::IoBuf;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, Epoch, Errno, Error, Group, GroupId, MapHandle, Refusal, Result, TargetId};
use wire::{GroupContext, GroupRole, StorageReply, StorageRequest};

/// A mirrored group to send a request to, and how long to try.
#[derive(Clone, Copy)]
pub struct GroupDestination<'a> {
    /// The map with its members and their states.
    pub map: &'a MapHandle,
    /// The group.
    pub group: GroupId,
    /// Longest time to look for a primary that answers.
    pub time_out: Duration,
}

impl StorageChannels {
    /// Sends a request to the primary of a mirrored group; fills in the request's `target` and
    /// `group`. Waits while a primary is being replaced. With [`WhenOffline::Refuse`] (work that
    /// can be done later) it fails at once if the map has no member that can answer.
    ///
    /// # Errors
    /// `ETIMEDOUT` when no member has answered in time: the outcome is uncertain. `EIO` for a group
    /// that the map doesn't have, or that is lost. Otherwise those of [`StorageChannels::call`].
    pub async fn call_group(
        &self,
        destination: GroupDestination<'_>,
        mut request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let mut search = PrimarySearch::begin(destination.time_out);
        if may_read_any_replica(&request) {
            if let Some(answer) =
                Box::pin(self.read_any_replica(destination, search.deadline_ns, &request, &payload)).await
            {
                return answer;
            }
            search.check(destination, None)?;
        }
        loop {
            let (primary, since) = match destination.primary()? {
                (Some(primary), since) => (primary, since),
                (None, _) if self.when_offline() == WhenOffline::Refuse => {
                    return Err(destination.no_answer_error(
                        Errno::EHOSTDOWN,
                        "has no replica that can be used now",
                        None,
                    ));
                }
                (None, since) => {
                    search.back_off(destination, since, None).await?;
                    continue;
                }
            };
            request.target = primary;
            request.group =
                Some(GroupContext { group: destination.group, version: since, role: GroupRole::Primary });
            let replaced = Box::pin(destination.wait_for_replacement(primary, search.deadline_ns));
            match self.call_or_abandon(replaced, request.clone(), payload.clone()).await {
                None => search.check(destination, None)?,
                Some(Err(error)) if error.errno == Refusal::GroupVersionMismatch => {
                    search.back_off(destination, since, Some(error)).await?
                }
                // The member may have failed the request because it isn't primary any more.
                Some(Err(error))
                    if is_member_error(error.errno) && destination.has_other_primary(primary) =>
                {
                    search.check(destination, Some(error))?;
                }
                Some(Err(error)) if matches!(error.errno, Errno::ETIMEDOUT | Errno::EHOSTDOWN) => {
                    return Err(destination.no_answer_error(error.errno, "doesn't answer", Some(error)));
                }
                Some(answer) => return answer,
            }
        }
    }
}

/// Whether an error may concern only the member that was asked, so that another one might succeed.
pub(crate) fn is_member_error(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ETIMEDOUT | Errno::EHOSTDOWN | Errno::ENXIO | Errno::ENODEV | Errno::EIO | Errno::ESHUTDOWN
    )
}

/// The search for a primary that answers.
struct PrimarySearch {
    time_out: Duration,
    deadline_ns: u64,
    backoff: Duration,
}

impl PrimarySearch {
    fn begin(time_out: Duration) -> PrimarySearch {
        let deadline_ns = rt::monotonic_ns().saturating_add(time_out.as_nanos() as u64);
        PrimarySearch { time_out, deadline_ns, backoff: FIRST_GROUP_BACKOFF }
    }

    /// Fails when the time is over; `last` is the last refusal.
    fn check(&self, destination: GroupDestination<'_>, last: Option<Error>) -> Result<()> {
        if rt::monotonic_ns() < self.deadline_ns {
            return Ok(());
        }
        let what = format!("has not completed the request within {:?}", self.time_out);
        Err(destination.no_answer_error(Errno::ETIMEDOUT, &what, last))
    }

    /// Waits for another version of the group than `since`, or until a retry may succeed: the
    /// member that refused may have had an old map.
    async fn back_off(
        &mut self,
        destination: GroupDestination<'_>,
        since: Epoch,
        last: Option<Error>,
    ) -> Result<()> {
        self.check(destination, last)?;
        let until_ns = rt::monotonic_ns() + self.backoff.as_nanos() as u64;
        loop {
            let seen = destination.map.epoch();
            let left_ns = until_ns.saturating_sub(rt::monotonic_ns());
            if destination.primary()?.1 != since || left_ns == 0 {
                break;
            }
            rt::timeout(Duration::from_nanos(left_ns), destination.map.changed_since(seen)).await;
        }
        self.backoff = (self.backoff * 2).min(LONGEST_GROUP_BACKOFF);
        Ok(())
    }
}

impl GroupDestination<'_> {
    pub(crate) fn current(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    /// The primary, if there is one, and the version of the group.
    fn primary(&self) -> Result<(Option<TargetId>, Epoch)> {
        let map = self.current();
        let group = map.group(self.group).ok_or_else(|| {
            Error::new(Errno::EIO, format!("group {} is not in cluster map {}", self.group, map.epoch))
                .hint("weft group list shows all groups")
        })?;
        group.ensure_not_lost()?;
        Ok((group.primary(), group.since))
    }

    fn has_other_primary(&self, than: TargetId) -> bool {
        matches!(self.primary(), Ok((Some(primary), _)) if primary != than)
    }

    /// Waits until the group has another version, or until it is too late for an answer.
    pub(crate) async fn wait_for_change(self, since: Option<Epoch>, deadline_ns: u64) {
        let end_ns = deadline_ns.saturating_add(ANSWER_GRACE.as_nanos() as u64);
        self.wait_until(end_ns, || self.primary().ok().map(|(_, since)| since) != since).await;
    }

    /// Waits until there is another primary, or until it is too late for an answer.
    async fn wait_for_replacement(self, primary: TargetId, deadline_ns: u64) {
        // The transport gives up at the same time, and has a more precise error.
        let end_ns = deadline_ns.saturating_add(ANSWER_GRACE.as_nanos() as u64);
        self.wait_until(end_ns, || self.has_other_primary(primary)).await;
    }

    /// Waits until the map fulfils a condition, or until the time `end_ns`. Most requests end
    /// before the first check.
    async fn wait_until(self, end_ns: u64, is_fulfilled: impl Fn() -> bool) {
        rt::sleep(GROUP_WATCH_DELAY).await;
        loop {
            let seen = self.map.epoch();
            let left_ns = end_ns.saturating_sub(rt::monotonic_ns());
            if is_fulfilled() || left_ns == 0 {
                return;
            }
            rt::timeout(Duration::from_nanos(left_ns), self.map.changed_since(seen)).await;
        }
    }

    /// The error when no member has answered.
    fn no_answer_error(&self, errno: Errno, what: &str, last: Option<Error>) -> Error {
        let map = self.current();
        let (scheme, members) = match map.group(self.group) {
            Some(group) => (group.scheme.to_string(), describe_members(&map, group)),
            None => ("removed".into(), String::new()),
        };
        let last = last.filter(|last| !last.message.is_empty());
        let cause = last.map_or_else(String::new, |last| format!("; the last answer: {}", last.message));
        Error::new(errno, format!("group {} ({scheme}: {members}) {what}{cause}", self.group))
            .hint(format!("weft group show {} shows which of its replicas can be used", self.group))
    }
}

/// The members of a group with their states, for messages.
fn describe_members(map: &ClusterMap, group: &Group) -> String {
    let member = |(id, state): (TargetId, types::MemberState)| {
        let target = map.target(id);
        let node = target.and_then(|target| map.node(target.node));
        let node = node.map_or_else(String::new, |node| format!(" on {}", node.name));
        let target_state = target.map_or("removed", |target| match target.state {
            types::TargetState::Online => "online",
            types::TargetState::ProbablyOffline => "probably offline",
            types::TargetState::Offline => "offline",
        });
        format!("target {id}{node} is {} and {target_state}", state.name())
    };
    group.members_with_states().map(member).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
