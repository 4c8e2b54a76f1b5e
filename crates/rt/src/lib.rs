//! Per-core runtime: tasks, timers, randomness, files and sockets, on one io_uring per core; and
//! all of it on simulated hosts.
//!
//! A *core* is a thread with a ring, timers and tasks that never leave it ([`block_on`],
//! [`start_core`]). Its loop runs ready tasks, submits their operations and waits, in one system
//! call for the whole batch; it never spins. Other threads interact with a core only by waking its
//! tasks.
//!
//! It isn't a general runtime: no work stealing, no `Send` tasks, no blocking in a task. It knows
//! nothing of file systems above files.
//!
//! Invariants:
//! - only this crate accesses clocks, threads and randomness;
//! - memory that the kernel uses stays alive until the operation's completion, even if its future
//!   is dropped;
//! - a task is in one ready queue at most once.
//!
//! ```
//! let sum = rt::block_on(async {
//!     rt::join_all(vec![std::future::ready(1), std::future::ready(2)]).await.iter().sum::<i32>()
//! });
//! assert_eq!(sum.unwrap(), 3);
//! ```

#![allow(unsafe_code)] // System calls and memory shared with the kernel are this crate's job.
#![warn(missing_docs, clippy::undocumented_unsafe_blocks)]

mod blocking;
mod buf;
mod clock;
mod context;
mod core_ring;
mod descriptors;
mod disk;
mod driver;
mod executor;
mod io_uring_support;
mod join;
mod local;
mod log_rate_limit;
#[cfg(any(test, target_env = "musl"))]
mod memory_compare;
#[cfg(any(test, all(target_env = "musl", not(debug_assertions))))]
mod memory_copy;
pub mod net;
mod numa;
mod op;
pub mod ring;
mod select;
mod shared_memory;
pub mod sim;
pub mod sync;
mod task;
mod thread;
mod timer;

#[doc(hidden)]
pub use buf::careless;
pub use buf::{IO_ALIGNMENT, IoBuf};
pub use clock::{
    draw_hash_keys, is_clock_synchronized, monotonic_ns, now, random_u64, secret_bytes, secret_u64,
};
pub use descriptors::{close, keep_descriptors_from_children};
pub use disk::{
    Fallocate, File, FileStat, MAX_ATTRIBUTE_BYTES, OpenOptions, PathGuard, UnallocatedRanges,
    create_dir_all, file_system_id, file_system_space, read_dir, remove_dir, remove_file, rename, sync_dir,
    sync_filesystem, unsynced_data_verifier, unsynced_data_verifier_of_machine,
};
pub use executor::block_on;
pub use io_uring_support::{IoUringSupport, io_uring_support};
pub use join::{join_all, spawn, yield_now};
pub use local::{local, process_wide};
pub use log_rate_limit::LogRateLimit;
pub use numa::NumaZone;
pub use select::{Either, Select, select};
pub use shared_memory::SharedMemory;
pub use thread::{CoreConfig, CoreGroup, allowed_cpus, pinned_cpu, start_core};
pub use timer::{Timeout, sleep, timeout};
