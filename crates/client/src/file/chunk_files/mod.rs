//! The chunk files of files: requests to storage services.
//!
//! [`ChunkFiles`] sends a file's bytes to the targets of its layout, and gets them from there. It
//! needs the cluster map, the session with its capabilities, and the leases' epochs. It knows
//! nothing of handles, names, or the kernel.

pub(crate) mod lease_epoch;
mod reserve;
pub(crate) mod striping;
mod sync;

use crate::file::access::ended_lease;
use crate::file::inode::InodeTable;
use crate::session::Session;
use crate::session::capabilities::ExpiredRetries;
use crate::session::slots::SlotTable;
use lease_epoch::{LeaseContext, MAX_RENEWALS};
use routing::{GroupDestination, StorageChannels};
use rt::IoBuf;
use std::sync::Arc;
use striping::ChunkLocation;
use sync::UnreplicatedTargets;
use types::{ChunkFileId, Errno, MapHandle, Refusal, Result, TargetId};
use wire::{DataPath, StorageOp, StorageReply, StorageRequest};

/// Transfers of at least this many bytes bypass the storage server's page cache: the device is as
/// fast, and the client's kernel caches them.
const DIRECT_FROM: usize = 64 * 1024;

/// Access to the chunk files of all files.
pub(crate) struct ChunkFiles {
    session: Arc<Session>,
    /// The files whose lease epochs are renewed.
    inodes: Arc<InodeTable>,
    storage: StorageChannels,
    map: MapHandle,
    /// Session slots for writes to files that other sessions may also write.
    slots: Arc<SlotTable>,
    /// Targets without replicas whose data this session may have changed.
    unreplicated: UnreplicatedTargets,
    /// Small direct transfers use the storage servers' page cache.
    server_cache: bool,
}

impl ChunkFiles {
    pub(crate) fn new(
        (session, inodes): (Arc<Session>, Arc<InodeTable>),
        (storage, map): (StorageChannels, MapHandle),
        server_cache: bool,
    ) -> ChunkFiles {
        let (slots, unreplicated) = (Arc::default(), UnreplicatedTargets::default());
        ChunkFiles { session, inodes, storage, map, slots, unreplicated, server_cache }
    }

    /// Sends a request for a chunk file. `under` names the file and the lease.
    pub(crate) async fn send(
        &self,
        under: LeaseContext,
        (location, name): (ChunkLocation, ChunkFileId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        self.send_to(under, location, self.request(location, name, op), payload).await
    }

    /// Like `send`, for a write that other sessions may read and overwrite as soon as it is
    /// done. The storage service must not execute it twice.
    async fn send_once(
        &self,
        under: LeaseContext,
        (location, name): (ChunkLocation, ChunkFileId),
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let slot = self.slots.next();
        let slot_sequence = Some(slot.slot_sequence);
        let request = StorageRequest { slot_sequence, ..self.request(location, name, op) };
        let answer = self.send_to(under, location, request, payload).await;
        slot.complete(&answer);
        answer
    }

    /// Builds a request. One to a group gets its target when it is sent.
    fn request(&self, location: ChunkLocation, name: ChunkFileId, op: StorageOp) -> StorageRequest {
        let target = if let ChunkLocation::Target(target) = location { target } else { TargetId(0) };
        StorageRequest::new(self.session.id, target, name, op)
    }

    async fn send_to(
        &self,
        under: LeaseContext,
        location: ChunkLocation,
        mut request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let (mut expired_retries, mut renewals) = (ExpiredRetries::default(), 0);
        (request.epoch, request.length_bound) = (under.epoch, under.known_len);
        loop {
            if let Some(error) = self.session.end_cause() {
                return Err(error);
            }
            request.capability = self.session.capability(request.ino, &request.op).await?;
            let sent_ns = rt::monotonic_ns();
            let answer = match location {
                ChunkLocation::Target(_) => self.storage.call(request.clone(), payload.clone()).await,
                ChunkLocation::Group(group) => {
                    let to = GroupDestination {
                        map: &self.map,
                        group,
                        time_out: self.session.request_timeout.get(),
                    };
                    // Boxed, so that the futures of requests to single targets don't contain its
                    // state.
                    Box::pin(self.storage.call_group(to, request.clone(), payload.clone())).await
                }
            };
            match answer {
                Err(error) if self.session.capabilities.drop_if_stale(request.ino, &error) => {
                    if !expired_retries.may_repeat(sent_ns).await {
                        return Err(error);
                    }
                }
                Err(error) if error.errno == Refusal::RevokedLeaseEpoch => {
                    renewals += 1;
                    if renewals > MAX_RENEWALS {
                        return Err(ended_lease(under.ino));
                    }
                    // If a change with this slot and sequence id was executed, the retransmission
                    // gets the first answer.
                    request.epoch = Box::pin(self.renew_epoch(under, request.epoch)).await?;
                }
                Err(error) if error.errno == Errno::ESTALE => {
                    self.session.handle_fencing(&error);
                    return Err(error);
                }
                Ok(StorageReply::Done { verifier }) => {
                    self.session.verifiers.record(location, verifier, !request.op.spec().is_sync());
                    return Ok(StorageReply::Done { verifier });
                }
                answer => return answer,
            }
        }
    }

    pub(crate) fn path_of(&self, direct: bool, len: usize) -> DataPath {
        if len >= DIRECT_FROM || (direct && !self.server_cache) { DataPath::Direct } else { DataPath::Cached }
    }
}
