//! Stores of targets.

use chunkstore::{Identity, Options, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{ClusterMap, TargetId};

/// Directory of the targets on simulated machines.
pub const SIMULATED_DIR: &str = "/targets";

/// UUID of the cluster of all targets.
pub const CLUSTER: &str = "00000000-0000-4000-8000-000000000001";

/// Size of an intent log in bytes: small enough that a test can fill it.
pub const LOG_BYTES: u64 = 256 * 1024;

/// Returns the identity of a target.
pub fn identity(target: TargetId) -> Identity {
    Identity { cluster: CLUSTER.into(), target }
}

/// Returns the directory of a target below `base`.
pub fn directory(base: &Path, target: TargetId) -> PathBuf {
    base.join(format!("t{target}"))
}

/// Creates an empty target in a directory. With a log of 0 bytes, nothing is recovered after a
/// crash.
pub async fn format(directory: &Path, target: TargetId, log_bytes: u64) {
    Store::format_with_log(directory, &identity(target), log_bytes).await.unwrap();
}

/// Opens the store of the target in a directory.
pub async fn open(directory: &Path, target: TargetId) -> Arc<Store> {
    Store::open(directory, &identity(target), Options::default()).await.unwrap().0
}

/// Creates an empty target in a directory and opens it.
pub async fn create(directory: &Path, target: TargetId, log_bytes: u64) -> Arc<Store> {
    format(directory, target, log_bytes).await;
    open(directory, target).await
}

/// Returns the targets of a map.
pub fn of_map(map: &ClusterMap) -> Vec<TargetId> {
    map.targets.iter().map(|target| target.id).collect()
}

/// Creates and opens all targets of a map, each in its directory below `base`.
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
