//! Requests of management on behalf of an administrator.

use crate::drain::DrainStatus;
use crate::limits::BACKGROUND_BATCH;
use crate::service::MetaService;
use crate::session::table::SessionKind;
use types::{
    ChunkFileId, Errno, Error, InodeId, Layout, PartitionId, PoolId, Result, SessionId, StripePattern,
    TargetId,
};
use wire::mgmt::DrainProgress;

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

impl MetaService {
    /// Returns a file whose layout includes the target, if there is one. Reads every inode: minutes
    /// for a hundred million of them.
    pub async fn file_on(&self, target: TargetId) -> Result<Option<InodeId>> {
        for partition in self.all_partitions() {
            if let Some(ino) = self.file_on_in(target, partition).await? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// The same for one partition.
    ///
    /// # Errors
    /// `PartitionNotServed` if another service owns the partition.
    pub async fn file_on_in(&self, target: TargetId, partition: PartitionId) -> Result<Option<InodeId>> {
        {
            let mut after = InodeId(0);
            loop {
                let page = self
                    .read(partition, |view| namespace::inodes(view, partition, after, BACKGROUND_BATCH))
                    .await?;
                let Some(&(last, _)) = page.last() else { break };
                after = last;
                for (ino, inode) in &page {
                    let Some(layout) = &inode.layout else { continue };
                    let layout = Layout::try_from(layout)?;
                    if self.chunks.stripe_on(&layout, target)?.is_some() {
                        return Ok(Some(*ino));
                    }
                }
                rt::yield_now().await;
            }
            // Deleted files whose chunk files still exist.
            let doomed = self
                .read(partition, |view| namespace::doomed(view, partition, ChunkFileId(0), usize::MAX))
                .await?;
            for (name, layout) in doomed {
                if self.chunks.stripe_on(&layout, target)?.is_some() {
                    return Ok(Some(name.owner()));
                }
            }
        }
        Ok(None)
    }

    /// Returns an inode whose pattern names the pool, for itself or for its new files, if there is
    /// one. Reads every inode, as [`MetaService::file_on`].
    pub async fn inode_naming_pool(&self, pool: PoolId) -> Result<Option<InodeId>> {
        for partition in self.all_partitions() {
            if let Some(ino) = self.inode_naming_pool_in(pool, partition).await? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// The same for one partition.
    ///
    /// # Errors
    /// `PartitionNotServed` if another service owns the partition.
    pub async fn inode_naming_pool_in(
        &self,
        pool: PoolId,
        partition: PartitionId,
    ) -> Result<Option<InodeId>> {
        let mut after = InodeId(0);
        loop {
            let page = self
                .read(partition, |view| namespace::inodes(view, partition, after, BACKGROUND_BATCH))
                .await?;
            let Some(&(last, _)) = page.last() else { return Ok(None) };
            after = last;
            for (ino, inode) in &page {
                let named = inode.pattern.as_ref().map(StripePattern::try_from).transpose()?;
                if named.is_some_and(|pattern| pattern.pool == pool) {
                    return Ok(Some(*ino));
                }
            }
            rt::yield_now().await;
        }
    }

    /// Progress of draining targets, as management shows it, for files of the partitions that this
    /// service executes.
    pub fn drain_progress(&self) -> Vec<(TargetId, DrainProgress)> {
        let progress = |drain: DrainStatus| {
            let remaining_s = match drain.rate {
                _ if drain.is_empty => Some(0),
                0 => None,
                rate => Some(drain.bytes_left.div_ceil(rate)),
            };
            let progress = DrainProgress {
                empty: drain.is_empty,
                files_left: drain.files_left,
                bytes_left: drain.bytes_left,
                files_moved: drain.files_moved,
                bytes_moved: drain.bytes_moved,
                rate: drain.rate,
                remaining_s,
                hindrance: drain.hindrance,
                groups_left: 0,
                stuck: None,
            };
            (drain.target, progress)
        };
        self.drains().into_iter().map(progress).collect()
    }

    /// All sessions, as management shows them.
    pub fn session_infos(&self) -> Vec<wire::mgmt::SessionInfo> {
        let info = |session: SessionStatus| wire::mgmt::SessionInfo {
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
        };
        self.session_list().into_iter().map(info).collect()
    }

    /// All sessions, by id.
    pub fn session_list(&self) -> Vec<SessionStatus> {
        let now_ns = rt::monotonic_ns();
        let tally = self.leases.tally();
        let status = |session: &crate::session::table::Session| {
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
        let mut all = self.sessions.map_all(status);
        all.sort_unstable_by_key(|status| status.id);
        all
    }

    /// Requests the eviction of a session. A background task does it: the caller may be on a core
    /// that ends after the request.
    pub fn evict_session(&self, id: SessionId) -> Result<()> {
        match self.sessions.find(id).map(|session| session.kind) {
            Some(SessionKind::Remote) => {
                self.evictions.0.lock().push(id);
                self.evictions.1.set();
                Ok(())
            }
            Some(SessionKind::Local) => {
                Err(Error::new(Errno::EINVAL, format!("session {id} belongs to the service's own process"))
                    .hint("weft session list shows which can be evicted"))
            }
            None => Err(Error::new(Errno::ENOENT, format!("there is no session {id}"))
                .hint("weft session list shows all")),
        }
    }
}
