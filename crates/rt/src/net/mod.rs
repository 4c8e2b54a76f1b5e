//! Stream sockets on a core's ring: TCP, and Unix sockets by path.
//!
//! A [`Socket`] may have one receive and one send under way at a time: two sends would mix their bytes. A future that is dropped
//! cancels its operation; bytes that it had taken or sent are gone, so the connection is of no use afterwards.

mod address;
mod listener;
mod socket;

pub use address::Address;
pub use listener::Listener;
pub use socket::Socket;

use crate::context;
use std::io;

/// Simulated machines have no sockets yet.
fn refuse_in_simulation() -> io::Result<()> {
    match context::with_sim(|_| ()) {
        Some(()) => Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated machine has no sockets")),
        None => Ok(()),
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The kernel was interrupted by a signal; the operation is to be repeated.
fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}
