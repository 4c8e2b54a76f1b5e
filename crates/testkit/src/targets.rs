//! Stores of targets.

use chunkstore::{Identity, Options, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{ClusterMap, TargetId};

/// Where simulated machines have their targets.
pub const SIMULATED: &str = "/targets";

/// The cluster that all targets belong to.
pub const CLUSTER: &str = "00000000-0000-4000-8000-000000000001";

/// Bytes of an intent log that is small enough to be filled by a test.
pub const LOG_BYTES: u64 = 256 * 1024;

/// Who a target is.
pub fn identity(target: TargetId) -> Identity {
    Identity { cluster: CLUSTER.into(), target }
}

/// The directory of a target below `base`.
pub fn directory(base: &Path, target: TargetId) -> PathBuf {
    base.join(format!("t{target}"))
}

/// Makes an empty target in a directory. Without a log (0 bytes) nothing is recovered after a
/// crash.
pub async fn format(directory: &Path, target: TargetId, log_bytes: u64) {
    Store::format_with_log(directory, &identity(target), log_bytes).await.unwrap();
}

/// Opens the store of the target in a directory.
pub async fn open(directory: &Path, target: TargetId) -> Arc<Store> {
    Store::open(directory, &identity(target), Options::default()).await.unwrap().0
}

/// Makes an empty target in a directory and opens it.
pub async fn create(directory: &Path, target: TargetId, log_bytes: u64) -> Arc<Store> {
    format(directory, target, log_bytes).await;
    open(directory, target).await
}

/// The targets of a map.
pub fn of_map(map: &ClusterMap) -> Vec<TargetId> {
    map.targets.iter().map(|target| target.id).collect()
}

/// Makes all targets of a map, each in its directory below `base`, and opens them.
pub async fn create_all(base: &Path, targets: &[TargetId], log_bytes: u64) -> Vec<Arc<Store>> {
    for target in targets {
        format(&directory(base, *target), *target, log_bytes).await;
    }
    open_all(base, targets).await
}

/// Opens targets in their directories below `base`.
pub async fn open_all(base: &Path, targets: &[TargetId]) -> Vec<Arc<Store>> {
    let mut stores = Vec::new();
    for target in targets {
        stores.push(open(&directory(base, *target), *target).await);
    }
    stores
}
