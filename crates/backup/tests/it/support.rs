//! Helpers of the integration tests.

use backup::{Footer, Plan, Progress, Result, create};
use kv::{Blocking, Durability, Embedded, Readable, Store, Writer};
use std::sync::Arc;

/// Returns a snapshot of an engine.
pub fn snapshot(engine: &Arc<Embedded>) -> Arc<dyn Readable> {
    let store = Writer::with_blocking(engine.clone(), Durability::Process, Blocking::Inline);
    rt::block_on(async move { store.snapshot().await.unwrap() }).unwrap()
}

/// Writes a backup of a snapshot.
pub fn write_backup(snapshot: Arc<dyn Readable>, plan: &Plan) -> Result<Footer> {
    let plan = plan.clone();
    rt::block_on(async move { create(&*snapshot, &plan, &Progress::default()).await }).unwrap()
}

/// Writes a backup of the current state of an engine.
pub fn make_backup(engine: &Arc<Embedded>, plan: &Plan) -> Result<Footer> {
    write_backup(snapshot(engine), plan)
}
