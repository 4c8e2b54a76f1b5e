//! The check of a cluster that nobody serves.

use super::core::Served;
use super::services::{Plan, Services};
use crate::output::os_error;
use mgmt::StateDir;
use types::Result;

/// Opens the services, which settles what a process that died may have left; checks everything, and closes them.
///
/// # Errors
/// What keeps it from looking. Damage is in the report.
pub fn check(
    state: &StateDir,
    repair: bool,
    progress: impl Fn(&str, u64, u64) + 'static,
) -> Result<fsck::Report> {
    let plan = Plan::existing(state)?;
    let checked = rt::block_on(async move {
        let services = Services::open(&plan).await?;
        let report = services.check(&plan, repair, &progress).await;
        let closed = services.close().await;
        report.and_then(|report| closed.map(|()| report))
    });
    checked.map_err(|e| os_error("io_uring", &e))?
}
