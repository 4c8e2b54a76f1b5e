//! The check of a cluster that is being used: metadata is here, chunk files are on all nodes.

use fsck::{Online, Seat, Targets};
use kv::Engine;
use net::StorageChannels;
use rt::IoBuf;
use std::sync::PoisonError;
use std::time::Duration;
use types::{ByteRange, ClusterMap, Errno, Error, InodeId, MapHandle, Result, SessionId, crc32c};
use wire::{InGroup, Part, Path, StorageOp, StorageReply, StorageRequest};

/// Rest before a file that looks wrong is looked at again: longer than most writes take to be reported.
const REST: Duration = Duration::from_secs(2);

/// What the check needs.
pub struct OnlineCheck {
    pub partitions: u16,
    pub hash_key: (u64, u64),
    pub storage: StorageChannels,
    /// As it is at any time: what is asked of a mirrored group names its version.
    pub map: MapHandle,
}

/// How often a member of a group is asked whose version has changed: the map comes behind the members.
const TRIES: usize = 5;

/// Rest before it is asked again.
const TRY_AGAIN: Duration = Duration::from_millis(200);

impl OnlineCheck {
    /// Checks everything, and changes nothing.
    pub async fn run(&self, engine: &dyn Engine, map: &ClusterMap) -> Result<fsck::Report> {
        let freeze = || {
            engine.snapshot().ok_or_else(|| {
                Error::new(Errno::EOPNOTSUPP, "this metadata store can't be read while it is used")
                    .hint("stop the cluster and check it then")
            })
        };
        let (partitions, hash_key) = (self.partitions, self.hash_key);
        fsck::check_online(&Online { freeze: &freeze, partitions, hash_key, map, targets: self }).await
    }

    async fn ask(
        &self,
        seat: Seat,
        ino: InodeId,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let mut tries = 0;
        loop {
            let mut request = StorageRequest::new(SessionId(0), seat.target, ino, op.clone());
            let map = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
            request.group = seat.group.map(|group| InGroup {
                group,
                since: map.group(group).map_or(types::Epoch(0), |group| group.since),
                // As itself: a primary that finds a copy of its own damaged answers from another one.
                part: Part::Member { sequence: 0, settled: 0 },
            });
            match self.storage.call(request, payload.clone()).await {
                Err(error) if error.errno == Errno::EREMCHG && tries < TRIES => {
                    tries += 1;
                    rt::sleep(TRY_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }
}

impl Targets for OnlineCheck {
    fn len(&self, seat: Seat, ino: InodeId) -> fsck::Later<'_, u64> {
        Box::pin(async move {
            match self.ask(seat, ino, StorageOp::Stat, None).await? {
                StorageReply::Stat { len, .. } => Ok(len),
                other => Err(Error::new(Errno::EPROTO, format!("{seat} answered out of turn: {other:?}"))),
            }
        })
    }

    fn read(&self, seat: Seat, ino: InodeId, range: ByteRange) -> fsck::Later<'_, u32> {
        Box::pin(async move {
            let buffer = IoBuf::alloc((range.end - range.start) as usize);
            let op = StorageOp::Read { offset: range.start, path: Path::Direct };
            self.ask(seat, ino, op, Some(buffer.clone())).await?;
            Ok(crc32c(buffer.as_slice()))
        })
    }

    fn rest(&self) -> fsck::Later<'_, ()> {
        Box::pin(async {
            rt::sleep(REST).await;
            Ok(())
        })
    }
}
