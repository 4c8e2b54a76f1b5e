//! The tests of calls once more, between processes of one machine: over a Unix socket, with payloads in shared memory, in a cluster that encrypts.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.
#![allow(dead_code)] // What is cut and changed on the way, as other tests do, isn't on the way here.

#[path = "../rpc/addresses.rs"]
mod addresses;
#[path = "../rpc/calls.rs"]
mod calls;
#[path = "../rpc/cancel.rs"]
mod cancel;
#[path = "../rpc/proxy.rs"]
mod proxy;
#[path = "../rpc/raw.rs"]
mod raw;
#[path = "../rpc/restarts.rs"]
mod restarts;
#[path = "../rpc/stop.rs"]
mod stop;
#[path = "../rpc/support.rs"]
mod support;
#[path = "../rpc/time_outs.rs"]
mod time_outs;
#[path = "../rpc/unchecked.rs"]
mod unchecked;
#[path = "../rpc/until.rs"]
mod until;
mod way;
