//! Inventories: periodic comparisons of the chunk files that exist with the metadata.

use super::online_check::OnlineCheck;
use kv::Store;
use mgmt::{InventoryRecord, Management};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::{Result, ScrubSettings, TargetId};

/// How often it is checked whether an inventory is due or was requested.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Wait after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Missing chunk files of one inventory that are logged by inode.
const MAX_LOGGED: u64 = 100;

/// Takes inventories when they are due, by the settings of the map, and stores them in management.
/// Runs until the process ends, beside requests.
pub async fn take_inventories(
    check: Arc<OnlineCheck>,
    metadata: Arc<dyn Store>,
    management: Arc<Management>,
) {
    management.note_inventory_state(false, None);
    let settings = || management.current().settings.scrub.clone();
    loop {
        rt::sleep(CHECK_INTERVAL).await;
        let begun = settings();
        let now_s = rt::now().secs;
        if !management.last_inventory().is_due(&begun, now_s) {
            continue;
        }
        management.note_inventory_state(true, None);
        let is_stopped = || settings().stopped || settings().asked > begun.asked;
        let hindrance = match take(&check, &*metadata, &management, (&begun, now_s), &is_stopped).await {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "can't compare the chunk files with the metadata; it is tried again");
                Some(format!("can't compare the chunk files with the metadata: {}", error.message))
            }
        };
        let has_failed = hindrance.is_some();
        management.note_inventory_state(has_failed, hindrance);
        if has_failed {
            rt::sleep(RETRY_DELAY).await;
        }
    }
}

/// Takes one inventory for at most half of the time, so that clients have the other half. Stores
/// it, unless it is stopped.
async fn take(
    check: &OnlineCheck,
    metadata: &dyn Store,
    management: &Management,
    (settings, now_s): (&ScrubSettings, i64),
    is_stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let (mut files, mut missing) = (0, BTreeMap::<TargetId, u64>::new());
    let mut unreachable = BTreeSet::new();
    let (mut position, mut logged) = (fsck::InventoryPosition::START, 0);
    loop {
        let began_ns = rt::monotonic_ns();
        let Some((page, next)) = check.inventory_page(metadata, &position).await? else { break };
        for found in page.missing {
            *missing.entry(found.target).or_default() += 1;
            logged += 1;
            if logged <= MAX_LOGGED {
                log_missing(found);
            }
        }
        (files, position) = (files + page.files, next);
        unreachable.extend(page.unreachable);
        if is_stopped() {
            return Ok(());
        }
        rt::sleep(Duration::from_nanos(rt::monotonic_ns().saturating_sub(began_ns))).await;
    }
    // What was missing on a target that can't be asked now is still reported.
    for (target, count) in management.last_inventory().missing {
        if unreachable.contains(&target) {
            let known = missing.entry(target).or_default();
            *known = count.max(*known);
        }
    }
    let unreachable = unreachable.len();
    let missing_files: u64 = missing.values().sum();
    tracing::info!(files, missing_files, unreachable, "the chunk files were compared with the metadata");
    let record = InventoryRecord { asked: settings.asked, began_s: now_s, missing };
    management.note_inventory(record).await
}

fn log_missing(fsck::MissingChunkFile { ino, target }: fsck::MissingChunkFile) {
    tracing::error!(
        target_id = %target, inode = %ino,
        "the chunk file of inode {ino} is missing or too short on target {target}; hint: weft fsck names the file; restore it from a backup"
    );
}
