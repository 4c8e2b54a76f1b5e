//! Scrub: finds damage before a client meets it. Each target reads its content, block by block
//! against the checksums, and the primaries of mirrored groups compare the replicas. The scrub
//! repairs damage from another replica where it can, and reports the rest to the log and to
//! management.
//!
//! A scrub continues after a restart where it was, piece by piece, at the rate that the cluster
//! settings give, and more slowly while the target is in use.

mod record;
mod run;

use crate::service::StorageService;
use record::ScrubRecord;
use run::ScrubRun;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::{MapHandle, ScrubSettings, TargetId};
use wire::mgmt::ScrubProgress;

/// How often the scrubber checks whether a scrub is due, was requested, or may continue.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Default interval between the begins of two scrubs of a target, in seconds. Short enough to find
/// a bad block while the other replica is intact; even a slow and full disk is read within a small
/// part of it.
const DEFAULT_INTERVAL_S: u64 = 30 * 24 * 3600;

/// Default read rate of a target, in bytes per second: a part of what a single disk delivers.
const DEFAULT_RATE: u64 = 64 << 20;

/// Scrub progress of the targets of a service.
#[derive(Default)]
pub(crate) struct Scrubs(Mutex<std::collections::BTreeMap<TargetId, ScrubProgress>>);

impl Scrubs {
    fn publish(&self, progress: ScrubProgress) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(progress.target, progress);
    }

    fn all(&self) -> Vec<ScrubProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl StorageService {
    /// Scrubs all targets when it is due, by the settings of the map, until the service is gone.
    /// Runs beside requests, on one core.
    pub async fn run_scrubs(service: Arc<StorageService>, map: MapHandle) {
        let service = Arc::downgrade(&service);
        let mut known = BTreeSet::new();
        loop {
            let Some(service) = service.upgrade() else { return };
            let targets: Vec<TargetId> = service.stores().map(|store| store.target()).collect();
            for target in targets.into_iter().filter(|target| known.insert(*target)) {
                rt::spawn(run_scrubs_of(Arc::downgrade(&service), map.clone(), target));
            }
            drop(service);
            rt::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns the scrub progress of the targets.
    pub fn scrubs(&self) -> Vec<ScrubProgress> {
        let mut all = self.scrubs.all();
        for progress in &mut all {
            // Damage that reads have met since the scrub began counts as well.
            if let Some(served) = self.find(progress.target) {
                let (damaged, mended) = served.counters.repairs();
                progress.damaged += damaged;
                progress.mended += mended;
                progress.missing += served.store.incomplete_count();
            }
        }
        all
    }
}

fn settings(map: &MapHandle) -> ScrubSettings {
    map.load().settings.scrub.clone()
}

/// Scrubs one target, periodically.
async fn run_scrubs_of(service: std::sync::Weak<StorageService>, map: MapHandle, target: TargetId) {
    let dir = match service.upgrade().as_deref().and_then(|service| service.find(target)) {
        Some(served) => served.store.dir().to_path_buf(),
        None => return,
    };
    let now_s = rt::now().secs;
    let mut record = ScrubRecord::load(&dir, now_s).await;
    loop {
        {
            let Some(service) = service.upgrade() else { return };
            service.scrubs.publish(record.progress(target, false, None));
        }
        rt::sleep(CHECK_INTERVAL).await;
        let Some(service) = service.upgrade() else { return };
        let settings = settings(&map);
        let is_offline = service.find(target).is_some_and(|served| served.is_offline());
        if settings.stopped || is_offline || !record.is_due(&settings, target, rt::now().secs) {
            continue;
        }
        if !record.is_under_way() || record.asked < settings.asked {
            record.begin(settings.asked, rt::now().secs);
            if let Some(served) = service.find(target) {
                served.counters.reset_repairs();
            }
            tracing::info!(target_id = %target, "scrub of target {target} begins");
        }
        let run = ScrubRun { service: &service, map: &map, target, dir: &dir };
        let outcome = run.run(&mut record).await;
        run.store_record(&record).await;
        if let Err(error) = outcome {
            tracing::warn!(target_id = %target, %error, "the scrub of target {target} pauses");
            service.scrubs.publish(record.progress(target, true, Some(error.message.to_string())));
            rt::sleep(10 * CHECK_INTERVAL).await;
        }
    }
}
