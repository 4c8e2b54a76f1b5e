//! Calls over real sockets: what arrives, what is repeated, what is refused.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod addresses;
mod calls;
mod cancel;
mod hostile;
mod lost_connections;
mod proxy;
mod raw;
mod restarts;
mod silence;
mod stop;
mod support;
mod time_outs;
mod unchecked;
mod until;
mod way;
