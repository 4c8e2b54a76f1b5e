//! An operation on the ring as a future.

use crate::context;
use crate::driver::{KeepAlive, OnDrop, OpId, to_result};
use crate::executor::Core;
use io_uring::squeue::Entry128;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// An operation in flight. When it is dropped, the kernel retains its buffers until the completion.
pub(crate) struct Op {
    core: Rc<Core>,
    /// `None` after the completion.
    id: Option<OpId>,
}

impl Op {
    /// Queues an operation on this thread's ring.
    ///
    /// # Safety
    /// Everything that `entry` points to is owned by `keep` or lives until the completion by other
    /// means.
    pub(crate) unsafe fn start(entry: Entry128, keep: KeepAlive, on_drop: OnDrop) -> io::Result<Op> {
        let core = context::require_core()?;
        // SAFETY: passed on to the caller.
        let id = unsafe { core.start_op(entry, keep, on_drop)? };
        Ok(Op { core, id: Some(id) })
    }
}

/// Runs an operation that completes by itself, and returns the kernel's result.
///
/// # Safety
/// As for [`Op::start`].
pub(crate) async unsafe fn run(entry: Entry128, keep: KeepAlive) -> io::Result<usize> {
    // SAFETY: passed on to the caller.
    let op = unsafe { Op::start(entry, keep, OnDrop::Finish)? };
    to_result(op.await)
}

impl Future for Op {
    /// The kernel's result: negative is an error number.
    type Output = i32;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<i32> {
        let id = self.id.expect("an operation is polled again after its end");
        let polled = self.core.poll_op(id, cx);
        if polled.is_ready() {
            self.id = None;
        }
        polled
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.core.abandon_op(id);
        }
    }
}
