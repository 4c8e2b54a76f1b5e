//! The FUSE face of the client core: the kernel's file protocol on a session loop of our own.
//!
//! A [`Session`] mounts a client's file system and serves it until it is unmounted. On the way from
//! the kernel to the client core a request changes its shape once and its core never:
//!
//! ```text
//! kernel ── transport ── request (checked) ── dispatch ── client core
//!           io_uring queues │ /dev/fuse
//! ```
//!
//! - `abi` is the kernel's protocol, `request` and `reply` translate between its bytes and values,
//!   `init` decides which of its abilities are used. All of these are pure.
//! - `transport` carries requests: a pinned core for every processor, with a bounded number of
//!   lanes that each own their buffers.
//! - `dispatch` says what each operation means to the client core. It doesn't know the transport.
//! - `mount` and `session` begin and end all this.
//!
//! Invariants:
//! - What the kernel sends is checked before it is used: a request of impossible shape is answered
//!   with an error.
//! - A request is handled to its end on the core that took it; its payload buffer is the client
//!   core's data buffer.
//! - A request that may wait for long (for a lock) never takes a lane away from others.
//! - No thread that serves requests waits for the kernel's caches (that is `notify`'s job), and
//!   none touches its own mount.
//! - Where other clients are, the kernel keeps only what is under a lease, and has forgotten it
//!   before the lease is given up.
//! - Unmounting ends, whatever the users of the mount and the servers behind it do.

pub mod abi;
mod callers;
mod dispatch;
mod handles;
mod init;
mod locks;
mod mount;
mod notify;
mod reply;
mod request;
mod session;
mod standing;
mod stats;
#[allow(unsafe_code)] // System calls; each has its SAFETY comment.
mod sys;
mod transport;

pub use abi::Opcode;
pub use mount::{abort_connection, is_mounted};
pub use session::{MountOptions, Session};
pub use stats::Stats;
pub use transport::{DEFAULT_DEPTH, Transport};
