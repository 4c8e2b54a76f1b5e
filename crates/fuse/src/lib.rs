//! The FUSE front end of the client core: it serves the kernel's file protocol on session loops of
//! its own.
//!
//! A [`Session`] mounts a client's file system and serves it until it is unmounted. On the way from
//! the kernel to the client core a request is decoded once and never changes its core:
//!
//! ```text
//! kernel ── transport ── request (checked) ── dispatch ── client core
//!           io_uring queues │ /dev/fuse
//! ```
//!
//! - `abi` defines the kernel's protocol. `request` and `reply` translate between its bytes and
//!   values. `init` decides which kernel features are used. All of these are pure.
//! - `transport` carries requests: a pinned thread for every processor, with a bounded number of
//!   workers that each own their buffers.
//! - `dispatch` calls the client core for each operation. It doesn't know the transport.
//! - `mount` and `session` start and stop all this.
//!
//! Invariants:
//! - Every request from the kernel is checked before it is used: a malformed request is answered
//!   with an error.
//! - The core that receives a request handles it to its end. Its payload buffer is the client
//!   core's data buffer.
//! - A request that may wait for long (for a lock) never takes a worker away from other requests.
//! - No thread that serves requests waits for the kernel's caches (`notify` does that), and none
//!   accesses its own mount.
//! - Beside other clients the kernel caches only what is under a lease, and it is invalidated
//!   before the client gives the lease back.
//! - Unmounting ends, whatever the users of the mount and the servers behind it do.

pub mod abi;
mod caller_privileges;
mod caller_syscalls;
mod dispatch;
mod handles;
mod init;
mod locks;
mod mount;
mod notify;
mod reply;
mod request;
mod session;
mod stats;
#[allow(unsafe_code)] // System calls; each has its SAFETY comment.
mod sys;
mod transport;

pub use abi::Opcode;
pub use mount::{abort_connection, is_mounted};
pub use session::{MountOptions, Session};
pub use stats::Stats;
pub use transport::{DEFAULT_DEPTH, Transport};
