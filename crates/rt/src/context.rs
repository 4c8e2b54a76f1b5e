//! The runtime of the current thread: a core, a simulated host, or none.

use crate::executor::Core;
use crate::sim::Simulation;
use crate::task::TaskHeader;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// The runtime of a thread.
#[derive(Clone)]
pub(crate) enum Runtime {
    /// A real core.
    Core(Rc<Core>),
    /// A simulated world, on the host whose code is running.
    Sim(Rc<Simulation>),
}

thread_local! {
    static CURRENT: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// The runtime of this thread; `None` outside of one.
pub(crate) fn current() -> Option<Runtime> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// The runtime of this thread, or the error of an operation that needs one.
pub(crate) fn require() -> io::Result<Runtime> {
    current().ok_or_else(no_runtime_error)
}

/// The real core of this thread, or the error of an operation that needs one.
pub(crate) fn require_core() -> io::Result<Rc<Core>> {
    match require()? {
        Runtime::Core(core) => Ok(core),
        Runtime::Sim(_) => Err(io::Error::other("a simulated host has no ring")),
    }
}

/// Runs `f` on the simulated world that this thread runs inside of, if any.
pub(crate) fn with_sim<R>(f: impl FnOnce(&Simulation) -> R) -> Option<R> {
    let on_current = CURRENT.try_with(|current| match &*current.borrow() {
        Some(Runtime::Sim(world)) => Some(f(world)),
        _ => None,
    });
    on_current.ok().flatten()
}

fn no_runtime_error() -> io::Error {
    io::Error::other("this thread runs no core; hint: use rt::block_on or rt::start_core")
}

/// Makes `runtime` this thread's until the guard is dropped; fails if the thread already has one.
pub(crate) fn enter(runtime: Runtime) -> io::Result<Entered> {
    CURRENT.with(|current| {
        let mut current = current.borrow_mut();
        if current.is_some() {
            return Err(io::Error::other("this thread already runs a core; hint: await instead of blocking"));
        }
        *current = Some(runtime);
        Ok(Entered(()))
    })
}

/// Leaves the thread's runtime when dropped.
pub(crate) struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        // Taken out first: destructors may access the current runtime.
        let left = CURRENT.with(|current| current.borrow_mut().take());
        drop(left);
    }
}

/// Queues a task of this thread's core; returns the task if it belongs to another core.
pub(crate) fn push_local(task: Arc<TaskHeader>) -> Result<(), Arc<TaskHeader>> {
    let mut task = Some(task);
    let _ = CURRENT.try_with(|current| {
        if let Some(Runtime::Core(core)) = &*current.borrow()
            && task.as_ref().is_some_and(|task| std::ptr::eq(&*task.core, core.shared()))
            && let Some(task) = task.take()
        {
            core.push_ready(task);
        }
    });
    task.map_or(Ok(()), Err)
}
