//! Work that continues when its caller no longer waits for it.

pub(super) use net::run_detached as run;
