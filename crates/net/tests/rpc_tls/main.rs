//! The tests of calls once more, over encrypted connections: whatever holds for plain ones holds for these.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

#[path = "../rpc/addresses.rs"]
mod addresses;
#[path = "../rpc/calls.rs"]
mod calls;
#[path = "../rpc/cancel.rs"]
mod cancel;
#[path = "../rpc/hostile.rs"]
mod hostile;
#[path = "../rpc/lost_connections.rs"]
mod lost_connections;
mod others_numbers;
#[path = "../rpc/proxy.rs"]
mod proxy;
#[path = "../rpc/raw.rs"]
mod raw;
#[path = "../rpc/restarts.rs"]
mod restarts;
mod room;
#[path = "../rpc/silence.rs"]
mod silence;
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
