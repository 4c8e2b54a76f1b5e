//! Work that continues when its caller no longer waits for it.

pub(crate) use net::run_detached as run;
