//! The check of a cluster that is being used: metadata is here, chunk files are on all nodes.

use fsck::{Online, Targets};
use kv::Engine;
use net::StorageChannels;
use rt::IoBuf;
use std::time::Duration;
use types::{ByteRange, ClusterMap, Errno, Error, InodeId, Result, SessionId, TargetId};
use wire::{Path, StorageOp, StorageReply, StorageRequest};

/// Rest before a file that looks wrong is looked at again: longer than most writes take to be reported.
const REST: Duration = Duration::from_secs(2);

/// What the check needs.
pub struct OnlineCheck {
    pub partitions: u16,
    pub hash_key: (u64, u64),
    pub storage: StorageChannels,
}

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
        target: TargetId,
        ino: InodeId,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        self.storage.call(StorageRequest::new(SessionId(0), target, ino, op), payload).await
    }
}

impl Targets for OnlineCheck {
    fn len(&self, target: TargetId, ino: InodeId) -> fsck::Later<'_, u64> {
        Box::pin(async move {
            match self.ask(target, ino, StorageOp::Stat, None).await? {
                StorageReply::Stat { len, .. } => Ok(len),
                other => {
                    Err(Error::new(Errno::EPROTO, format!("target {target} answered out of turn: {other:?}")))
                }
            }
        })
    }

    fn read(&self, target: TargetId, ino: InodeId, range: ByteRange) -> fsck::Later<'_, ()> {
        Box::pin(async move {
            let buffer = IoBuf::alloc((range.end - range.start) as usize);
            let op = StorageOp::Read { offset: range.start, path: Path::Direct };
            self.ask(target, ino, op, Some(buffer)).await.map(drop)
        })
    }

    fn rest(&self) -> fsck::Later<'_, ()> {
        Box::pin(async {
            rt::sleep(REST).await;
            Ok(())
        })
    }
}
