//! What management asks of the metadata service of its process.

use meta::{MetaService, SessionKind, SessionStatus};
use net::LocalFuture;
use rt::sync::Event;
use std::sync::Arc;
use types::{InodeId, Result, SessionId, TargetId};
use wire::mgmt::SessionInfo;

/// The metadata service, as management sees it.
pub struct Metadata {
    /// The service.
    pub service: Arc<MetaService>,
    /// Set when it has settled what an earlier run left.
    pub recovered: Arc<Event>,
}

impl mgmt::Metadata for Metadata {
    fn tidy(&self, target: TargetId, files: Vec<InodeId>) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            // Sizes are settled from chunk files first, and then chunk files are cut to sizes.
            self.recovered.wait().await;
            self.service.tidy(target, &files).await
        })
    }

    fn file_on(&self, target: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(self.service.file_on(target))
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        let info = |session: SessionStatus| SessionInfo {
            session: session.id,
            client: match session.kind {
                SessionKind::Local => "this process".into(),
                SessionKind::Remote => session.name,
            },
            address: session.address,
            idle_s: Some(session.silent_ns / 1_000_000_000),
            leases: Some(session.leases),
            in_use: Some(session.in_use),
        };
        self.service.session_list().into_iter().map(info).collect()
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move { self.service.evict_session(session) })
    }
}
