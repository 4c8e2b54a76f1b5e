//! Per-core runtime: tasks, timers, randomness, files, on one io_uring a core; and the same on a simulated machine.

mod api_stub;
pub use api_stub::*;
