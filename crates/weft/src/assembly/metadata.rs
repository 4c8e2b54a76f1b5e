//! What management asks of the metadata service of its process.

use meta::{DrainStatus, MetaService, SessionKind, SessionStatus};
use net::LocalFuture;
use rt::sync::Event;
use std::sync::Arc;
use types::{InodeId, Result, SessionId, TargetId};
use wire::mgmt::{DrainProgress, SessionInfo};

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

    fn drains(&self) -> Vec<(TargetId, DrainProgress)> {
        let progress = |drain: DrainStatus| {
            let left = drain.bytes_left;
            let remaining_s = match drain.rate {
                _ if drain.is_empty => Some(0),
                0 => None,
                rate => Some(left.div_ceil(rate)),
            };
            let progress = DrainProgress {
                empty: drain.is_empty,
                files_left: drain.files_left,
                bytes_left: left,
                files_moved: drain.files_moved,
                bytes_moved: drain.bytes_moved,
                rate: drain.rate,
                remaining_s,
                hindrance: drain.hindrance,
            };
            (drain.target, progress)
        };
        self.service.drains().into_iter().map(progress).collect()
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        let info = |session: SessionStatus| SessionInfo {
            session: session.id,
            client: match session.kind {
                SessionKind::Local => "this process".into(),
                SessionKind::Remote => String::new(),
            },
            idle_s: Some(session.silent_ns / 1_000_000_000),
            leases: None,
        };
        self.service.session_list().into_iter().map(info).collect()
    }

    fn evict(&self, session: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move { self.service.evict_session(session) })
    }
}
