//! Work that goes on when nobody waits for it any more.

pub(super) use net::run_apart as run;
