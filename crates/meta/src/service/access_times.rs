//! Access times that clients report some time after the reads.
//!
//! They serve applications that search for unused files. So they conflict with no lease: a client
//! that caches the attributes of such a file keeps the old time. Times that can't be recorded are
//! dropped.

use crate::partition::executor::{CommandOutput, Executors};
use crate::store::transaction_view::View;
use namespace::{ReadError, Reader, Writes};
use std::collections::BTreeMap;
use types::{InodeId, PartitionId, Result, Timestamp};
use wire::AccessTime;

impl Executors {
    /// Records when files were read, with one commit for each partition.
    pub(super) async fn record_access_times(&self, accesses: &[AccessTime]) -> Result<()> {
        let mut parts: BTreeMap<PartitionId, BTreeMap<InodeId, Timestamp>> = BTreeMap::new();
        for &AccessTime { ino, at } in accesses {
            if self.has(ino.partition()) && self.is_serving(ino.partition()) {
                let latest = parts.entry(ino.partition()).or_default().entry(ino).or_insert(at);
                *latest = at.max(*latest);
            }
        }
        for (partition, times) in parts {
            let now = rt::now();
            let note = |reader: &dyn Reader| -> std::result::Result<Writes, ReadError> {
                let each =
                    times.iter().map(|(&ino, &at)| namespace::access_time_writes(reader, now, (ino, at)));
                Ok(each.collect::<std::result::Result<Vec<Writes>, ReadError>>()?.concat())
            };
            let command = |view: &View<'_>| Ok(CommandOutput { answer: (), writes: note(view)? });
            self.transact_without_leases(partition, command).await?;
        }
        Ok(())
    }
}
