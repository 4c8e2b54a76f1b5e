//! Requests over `/dev/fuse`: every core has a thread with its own device, cloned from the mount's.
//! The thread reads the device without blocking, and its ring reports when it is readable.
//!
//! The workers of a core read one at a time: the worker that holds the read lock reads a request,
//! releases the lock and handles the request.

use super::workers::{Core, Outcome, Worker};
use super::{Arena, Cpus, is_connection_end};
use crate::abi::{self, InHeader, OutHeader, bytes_of};
use crate::init::PAGE;
use crate::mount::errno;
use crate::request::{OneWay, Request, args_len};
use crate::session::{Shared, ThreadGuard};
use crate::sys;
use rt::{CoreConfig, IoBuf};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use types::Error;

/// Length of what precedes the data of a WRITE.
const WRITE_HEADER_BYTES: usize = size_of::<InHeader>() + size_of::<abi::WriteIn>();
/// Offset at which requests are read, so that the data of a WRITE begins on a page.
const REQUEST_OFFSET: usize = PAGE - WRITE_HEADER_BYTES;
/// Offset of reply bodies: on that page too.
const BODY_OFFSET: usize = PAGE;
/// Offset of replies, right before their bodies.
const REPLY_OFFSET: usize = BODY_OFFSET - size_of::<OutHeader>();

/// Starts a thread on every processor.
pub(super) fn start(shared: &Arc<Shared>, cpus: &Cpus, depth: usize) -> io::Result<Vec<JoinHandle<()>>> {
    let cores = cpus.allowed().len();
    let depth = super::workers_per_core(depth, cores, shared.features.max_io);
    let alive: Vec<ThreadGuard> = (0..cores).map(|_| shared.register_thread()).collect();
    shared.expect_cores(cores);
    let mut threads = Vec::with_capacity(cores);
    for ((index, &cpu), alive) in cpus.allowed().iter().enumerate().zip(alive) {
        let device = sys::clone_device(shared.mount.device())?;
        let memory = Arena::new(PAGE + shared.features.max_io, depth)?;
        let config = CoreConfig { name: format!("fuse-{cpu}"), cpu: Some(cpu), batch: true };
        let shared = shared.clone();
        threads.push(rt::start_core(config, move || async move {
            run_core(shared, index, device, memory).await;
            alive.finish_normally();
        })?);
    }
    Ok(threads)
}

async fn run_core(shared: Arc<Shared>, index: usize, device: OwnedFd, memory: Arena) {
    let core = Core::new(shared, index);
    let reader = Rc::new(Reader { device, read_lock: ReadLock::default() });
    let spares = Rc::new(RefCell::new(Vec::new()));
    let (weak, worker_memory, device) = (Rc::downgrade(&core), spares.clone(), reader.clone());
    core.set_add_worker(move || {
        let Some(core) = weak.upgrade() else { return Ok(()) };
        let memory = Arena::new(PAGE + core.shared.features.max_io, 1)?;
        core.run_worker(DevWorker::new(&core.shared, &device, memory.piece(0)));
        worker_memory.borrow_mut().push(memory);
        Ok(())
    });
    for piece in 0..memory.count() {
        core.run_worker(DevWorker::new(&core.shared, &reader, memory.piece(piece)));
    }
    core.finish().await;
    // Only now are the buffers unused.
    drop((memory, spares));
}

/// State that the workers of a core share.
struct Reader {
    device: OwnedFd,
    read_lock: ReadLock,
}

/// A worker with its buffer.
struct DevWorker {
    shared: Arc<Shared>,
    reader: Rc<Reader>,
    buf: IoBuf,
    request_buf: IoBuf,
    /// Number of the request that is being handled.
    unique: u64,
}

impl DevWorker {
    fn new(shared: &Arc<Shared>, reader: &Rc<Reader>, buf: IoBuf) -> DevWorker {
        let inbox = buf.slice(REQUEST_OFFSET..buf.len());
        DevWorker { shared: shared.clone(), reader: reader.clone(), buf, request_buf: inbox, unique: 0 }
    }

    fn reply(&self, outcome: Outcome) {
        let (len, error) = match outcome {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.number()),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique: self.unique };
        self.buf.copy_from(REPLY_OFFSET, bytes_of(&header));
        let result =
            sys::write(self.reader.device.as_raw_fd(), &self.buf.as_slice()[REPLY_OFFSET..BODY_OFFSET + len]);
        match result {
            Ok(()) => {}
            // The request was aborted, or the connection has ended: the reply isn't needed.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) || is_connection_end(errno(&e).number()) => {}
            Err(error) => tracing::error!(%error, unique = self.unique, "the kernel rejected a reply"),
        }
    }

    /// Reads one request under the read lock and returns its length. `None` when the connection has
    /// ended.
    async fn read(&self) -> Option<usize> {
        let device = self.reader.device.as_raw_fd();
        let _guard = self.reader.read_lock.take().await;
        loop {
            let cause = match sys::read_into(device, &self.request_buf) {
                Ok(len) => return Some(len),
                Err(e) => e,
            };
            match cause.raw_os_error() {
                // ENOENT: the request was aborted while it was read.
                Some(libc::EINTR | libc::ENOENT) => {}
                Some(libc::EAGAIN) => {
                    if let Err(e) = rt::ring::readable(device).await {
                        self.shared
                            .abort_with(Error::new(errno(&e), format!("waiting for {}: {e}", sys::DEVICE)));
                        return None;
                    }
                }
                Some(end) if is_connection_end(end) => return None,
                _ => {
                    self.shared.abort_with(Error::new(errno(&cause), format!("{}: {cause}", sys::DEVICE)));
                    return None;
                }
            }
        }
    }

    /// Returns the request in the first `len` bytes of the inbox. The decoder refuses a request
    /// with missing bytes.
    fn request(&self, header: InHeader, len: usize) -> Request {
        let end = len.saturating_sub(usize::from(header.total_extlen) * 8).max(size_of::<InHeader>());
        let split = (size_of::<InHeader>() + args_len(header.opcode)).min(end);
        Request {
            header,
            args: self.request_buf.slice(size_of::<InHeader>()..split),
            data: self.request_buf.slice(split..end),
            out: self.buf.slice(BODY_OFFSET..self.buf.len()),
        }
    }
}

impl Worker for DevWorker {
    async fn next_request(&mut self, reply: Option<Outcome>) -> Option<Request> {
        if let Some(outcome) = reply {
            self.reply(outcome);
        }
        loop {
            let len = self.read().await?.min(self.request_buf.len());
            let Some(header) = abi::read::<InHeader>(&self.request_buf.as_slice()[..len]) else { continue };
            match OneWay::decode(&header, &self.request_buf.as_slice()[size_of::<InHeader>()..len]) {
                Some(one_way) => self.shared.handle_one_way(header.opcode, one_way),
                None => {
                    self.unique = header.unique;
                    return Some(self.request(header, len));
                }
            }
        }
    }
}

/// The read lock of a core.
#[derive(Default)]
struct ReadLock {
    taken: Cell<bool>,
    /// Bounded by the number of workers.
    waiting: RefCell<Vec<Waker>>,
}

impl ReadLock {
    async fn take(&self) -> ReadLockGuard<'_> {
        poll_fn(|context| {
            if self.taken.replace(true) {
                self.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        ReadLockGuard { lock: self }
    }
}

/// Releases the read lock when dropped.
struct ReadLockGuard<'a> {
    lock: &'a ReadLock,
}

impl Drop for ReadLockGuard<'_> {
    fn drop(&mut self) {
        self.lock.taken.set(false);
        // The worker that waited last has the warmest buffer.
        let next = self.lock.waiting.borrow_mut().pop();
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
