//! Waits for recall acknowledgements, and how long sessions may take.

use crate::lease::table::Leases;
use crate::limits::{
    CUT_OFF_AFTER, PAUSE_THRESHOLD, RECALL_TIMEOUT, RECALL_WORK_TIMEOUT, STOPPING_PAUSE, UNREACHABLE_TIMEOUT,
    WORKING_REPORT_VALID,
};
use crate::partition::serving::Serving;
use crate::session::eviction::Eviction;
use crate::session::grace_period::GracePeriod;
use crate::session::table::{Session, Sessions};
use namespace::leases::PendingRecall;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use types::{MapHandle, TargetState};

/// Waits for recall acknowledgements.
pub(crate) struct RecallWaits {
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
    pub grace: Arc<GracePeriod>,
    pub map: MapHandle,
    pub serving: Arc<Serving>,
    /// Evicts sessions that don't acknowledge in time. Weak: an eviction runs commands, and a
    /// command waits for recalls.
    pub eviction: OnceLock<Weak<Eviction>>,
}

impl RecallWaits {
    /// Waits until recalls are acknowledged. Evicts sessions that don't acknowledge in time.
    pub async fn wait_for_acknowledgements(&self, due: Vec<PendingRecall>) {
        let mut since_ns = rt::monotonic_ns();
        for due in due {
            while let Some(acknowledged) = self.leases.acknowledgement_event(&due) {
                if self.sessions.find(due.session).is_none() {
                    self.leases.end_session(due.session);
                    break;
                }
                if !self.serving.may_evict() {
                    // The sessions acknowledge to another service already, or to none: this service
                    // must not evict them. The pause lets other tasks run, whatever the caller does
                    // next.
                    rt::sleep(STOPPING_PAUSE).await;
                    return;
                }
                if self.sessions.is_own(due.session) {
                    acknowledged.wait().await;
                    continue;
                }
                let timeout = self.remaining_time(&due, since_ns);
                if timeout.is_zero() {
                    let Some(eviction) = self.eviction.get().and_then(Weak::upgrade) else {
                        // The service is gone: as when it stops.
                        rt::sleep(STOPPING_PAUSE).await;
                        return;
                    };
                    eviction.evict(due.session, self.eviction_reason(&due, since_ns));
                    acknowledged.wait().await;
                } else {
                    let wait_began_ns = rt::monotonic_ns();
                    rt::timeout(timeout, acknowledged.wait()).await;
                    let now_ns = rt::monotonic_ns();
                    if now_ns - wait_began_ns > (timeout + PAUSE_THRESHOLD).as_nanos() as u64 {
                        // This service itself was paused, and messages that arrived meanwhile are
                        // still to be read.
                        self.sessions.note_contact_of_all();
                        since_ns = now_ns;
                    }
                }
            }
        }
    }

    /// How long a session may still take to acknowledge a recall that has been waited for since a
    /// time. A session that has seen the recall and keeps sending could have acknowledged. Another
    /// may be cut off for a while, in both directions or in one: its messages may arrive here, but
    /// none there. Such a session relies on its leases as long as a silent one.
    fn remaining_time(&self, due: &PendingRecall, since_ns: u64) -> Duration {
        let Some(session) = self.sessions.find(due.session) else { return RECALL_TIMEOUT };
        if self.grace.is_returning(due.session) {
            // The session is waiting for this service.
            session.note_contact();
        }
        let (last_contact_ns, now_ns) = (session.last_contact_ns(), rt::monotonic_ns());
        let ack_deadline_ns = since_ns + RECALL_TIMEOUT.as_nanos() as u64;
        let has_seen = session.has_confirmed(due.number);
        let is_in_contact = last_contact_ns > since_ns
            && now_ns.saturating_sub(last_contact_ns) < CUT_OFF_AFTER.as_nanos() as u64;
        let deadline = if has_seen && is_in_contact {
            ack_deadline_ns
        } else {
            let silent_since_ns = if has_seen { last_contact_ns } else { last_contact_ns.min(since_ns) };
            // Not at once, however old its last message is: this service itself may have been
            // paused.
            (silent_since_ns + UNREACHABLE_TIMEOUT.as_nanos() as u64).max(ack_deadline_ns)
        };
        let deadline = deadline.max(self.working_until_ns(&session, due, since_ns));
        // A session whose first message arrives meanwhile gets a shorter deadline.
        let recheck_ns = RECALL_TIMEOUT.as_nanos() as u64 / 5;
        Duration::from_nanos(deadline.saturating_sub(now_ns).min(recheck_ns))
    }

    /// Eviction reason of a session that didn't acknowledge a recall.
    fn eviction_reason(&self, due: &PendingRecall, since_ns: u64) -> String {
        let now_ns = rt::monotonic_ns();
        let ms_since = |ns: u64| now_ns.saturating_sub(ns) / 1_000_000;
        let waited_ms = ms_since(since_ns);
        let Some(session) = self.sessions.find(due.session) else { return "it has ended".into() };
        let contact = format!("its last message arrived {} ms ago", ms_since(session.last_contact_ns()));
        let seen = if session.has_confirmed(due.number) { "has seen" } else { "has not seen" };
        let report = match session.last_working_report_ns(due.number) {
            Some(reported_ns) => format!("it reported {} ms ago that it works on it", ms_since(reported_ns)),
            None => "it never reported that it works on it".into(),
        };
        format!(
            "it did not give up its lease on {} within {waited_ms} ms: {contact}, it {seen} recall {}, {report}",
            due.key, due.number
        )
    }

    /// Until when a session may work on a recall that it reports to work on; 0 if it doesn't report
    /// that.
    fn working_until_ns(&self, session: &Session, due: &PendingRecall, since_ns: u64) -> u64 {
        let Some(reported_ns) = session.last_working_report_ns(due.number) else { return 0 };
        let report_valid_until_ns = reported_ns + WORKING_REPORT_VALID.as_nanos() as u64;
        let map = self.map.load();
        match map.targets.iter().all(|target| target.state == TargetState::Online) {
            true => report_valid_until_ns.min(since_ns + RECALL_WORK_TIMEOUT.as_nanos() as u64),
            false => report_valid_until_ns,
        }
    }
}
