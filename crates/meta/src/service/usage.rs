//! The number of inodes.

use crate::limits::BACKGROUND_BATCH;
use crate::partition::executor::{CommandOutput, Executors};
use crate::store::transaction_view::View;
use namespace::record::{PartitionCounters, decode};
use namespace::{ReadError, Reader, keys};
use prost::Message;
use types::{InodeId, PartitionId, Result};
use wire::{MetadataUsage, StoreSpace};

impl Executors {
    /// The inodes of the partitions that this service owns, as every commit counts them, and the
    /// space of the store if it is local.
    pub(super) async fn usage(&self) -> Result<MetadataUsage> {
        let mut usage = MetadataUsage::default();
        for partition in self.owned() {
            usage.inodes += self.inodes_of(partition).await?;
        }
        let space = self.store.space();
        usage.store =
            space.map(|space| StoreSpace { used: space.used, free: space.free.saturating_sub(space.needed) });
        Ok(usage)
    }

    async fn inodes_of(&self, partition: PartitionId) -> Result<u64> {
        let command = |view: &View<'_>| Ok(counted(view, partition)?);
        let inodes = self.transact_without_leases(partition, command).await?;
        // The root directory isn't counted: no command created it.
        Ok(inodes + u64::from(partition == InodeId::ROOT.partition()))
    }
}

/// The inodes of a partition. If an earlier version has not counted them, they are counted now,
/// once.
fn counted(view: &View<'_>, partition: PartitionId) -> std::result::Result<CommandOutput<u64>, ReadError> {
    let key = keys::partition_counters(partition);
    let unchanged = |answer| CommandOutput { answer, writes: Vec::new() };
    let Some(value) = view.get(&key)? else { return Ok(unchanged(0)) };
    let next: PartitionCounters = decode(&key, value)?;
    if let Some(inodes) = next.inodes {
        return Ok(unchanged(inodes));
    }
    let (mut inodes, mut after) = (0, InodeId(0));
    loop {
        let range = keys::inodes_after(partition, after);
        let page = view.scan(&range.from, &range.to, BACKGROUND_BATCH)?;
        let Some(last) = page.last().and_then(|(key, _)| keys::inode_of_key(key)) else { break };
        inodes +=
            page.iter().filter(|(key, _)| keys::inode_of_key(key) != Some(InodeId::ROOT)).count() as u64;
        after = last;
    }
    let next = PartitionCounters { inodes: Some(inodes), ..next };
    Ok(CommandOutput { answer: inodes, writes: vec![(key.to_vec(), Some(next.encode_to_vec().into()))] })
}
