//! Sessions as an administrator sees them.

use crate::lease::table::Leases;
use crate::session::table::{Session, SessionKind, Sessions};
use types::SessionId;

/// A session as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionStatus {
    /// Its id.
    pub id: SessionId,
    /// Whether it belongs to this process or to another.
    pub kind: SessionKind,
    /// Nanoseconds since its last message.
    pub idle_ns: u64,
    /// Name of its client; empty for a session that registered in this process.
    pub name: String,
    /// Machine and process, as its client reports them; empty likewise.
    pub host: String,
    /// Address from which its client registered; empty likewise.
    pub address: String,
    /// Leases that it holds.
    pub leases: u64,
    /// Files that it has open without a lease on them.
    pub in_use: u64,
}

/// All sessions, by id.
pub(crate) fn list(sessions: &Sessions, leases: &Leases) -> Vec<SessionStatus> {
    let now_ns = rt::monotonic_ns();
    let tally = leases.tally();
    let status = |session: &Session| {
        let client = session.client_info();
        let has = tally.get(&session.id).copied().unwrap_or_default();
        SessionStatus {
            id: session.id,
            kind: session.kind,
            idle_ns: now_ns.saturating_sub(session.last_contact_ns()),
            name: client.client,
            host: client.host,
            address: client.address,
            leases: has.leases,
            in_use: has.in_use,
        }
    };
    let mut all = sessions.map_all(status);
    all.sort_unstable_by_key(|status| status.id);
    all
}

/// A session as management shows it.
pub(crate) fn session_info(session: SessionStatus) -> wire::mgmt::SessionInfo {
    wire::mgmt::SessionInfo {
        session: session.id,
        client: match session.kind {
            SessionKind::Local => "this process".into(),
            SessionKind::Remote => session.name,
        },
        host: session.host,
        address: session.address,
        idle_s: Some(session.idle_ns / 1_000_000_000),
        leases: Some(session.leases),
        in_use: Some(session.in_use),
    }
}
