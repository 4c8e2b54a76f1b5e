//! Requests over io_uring: every processor has a queue, and every queue a pinned thread with
//! entries that each carry one request.
//!
//! The kernel sends a request to the queue of the processor on which its caller runs, so that
//! caller and server share a core and no other core is woken. Every queue needs entries: the kernel
//! holds all requests back until every queue has its first entry, and requests never move between
//! queues.
//!
//! FORGET and INTERRUPT don't use the queues; a plain thread reads them from the device.

use super::workers::{Core, Outcome, Worker};
use super::{Arena, Cpus, is_connection_end};
use crate::abi::{self, InHeader, OutHeader, UringCmdReq, UringEntInOut, bytes_of};
use crate::dispatch::xattrs;
use crate::init::PAGE;
use crate::mount::errno;
use crate::request::{OneWay, Request};
use crate::session::{Shared, ThreadGuard};
use crate::sys;
use rt::{CoreConfig, IoBuf};
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use types::{Errno, Error};

/// Offset in an entry's header page, behind the header proper, of the description of its two
/// buffers for the kernel.
const BUFFERS_OFFSET: usize = 1024;
/// Number of those buffers: header and payload.
const BUFFERS: u32 = 2;
/// Time after which an added entry is certainly registered.
const REGISTER_DELAY: Duration = Duration::from_millis(2);
/// How often a registration is tried while the kernel isn't ready for it, and the pause in between.
const REGISTER_TRIES: u32 = 100;
const REGISTER_PAUSE: Duration = Duration::from_millis(10);

/// Buffers for the entries of one queue.
struct QueueMemory {
    headers: Arena,
    payloads: Arena,
}

impl QueueMemory {
    fn new(entries: usize, max_io: usize) -> io::Result<QueueMemory> {
        Ok(QueueMemory { headers: Arena::new(PAGE, entries)?, payloads: Arena::new(max_io, entries)? })
    }
}

/// Starts a thread for every queue, and the reader of one-way requests.
pub(super) fn start(shared: &Arc<Shared>, cpus: &Cpus, depth: usize) -> io::Result<Vec<JoinHandle<()>>> {
    let queues = cpus.possible();
    let depth = super::workers_per_core(depth, queues, shared.features.max_io);
    let memory: io::Result<Vec<_>> =
        (0..queues).map(|_| QueueMemory::new(depth, shared.features.max_io)).collect();
    let mut alive: Vec<ThreadGuard> = (0..=queues).map(|_| shared.register_thread()).collect();
    shared.expect_cores(queues);
    let mut threads =
        vec![start_one_way_reader(shared, alive.pop().expect("one guard for each thread was made"))?];
    for ((queue, memory), alive) in memory?.into_iter().enumerate().zip(alive) {
        let config = CoreConfig { name: format!("fuse-{queue}"), cpu: cpus.pin(queue), batch: true };
        let shared = shared.clone();
        threads.push(rt::start_core(config, move || async move {
            run_queue(shared, queue, memory).await;
            alive.finish_normally();
        })?);
    }
    Ok(threads)
}

async fn run_queue(shared: Arc<Shared>, queue: usize, memory: QueueMemory) {
    let core = Core::new(shared, queue);
    let spares = Rc::new(RefCell::new(Vec::new()));
    let weak = Rc::downgrade(&core);
    let worker_memory = spares.clone();
    core.set_add_worker(move || {
        let Some(core) = weak.upgrade() else { return Ok(()) };
        let memory = QueueMemory::new(1, core.shared.features.max_io)?;
        core.run_worker(UringEntry::new(&core.shared, queue, &memory, 0));
        worker_memory.borrow_mut().push(memory);
        rt::spawn(wake_queue(core.shared.clone()));
        Ok(())
    });
    for index in 0..memory.headers.count() {
        core.run_worker(UringEntry::new(&core.shared, queue, &memory, index));
    }
    core.finish().await;
    // Only now are the buffers unused.
    drop((memory, spares));
}

/// Makes the kernel deliver a request that waits in this thread's queue, to which an entry was just
/// added.
///
/// The kernel gives a newly registered entry the next new request, and none of those that wait
/// already: these go to entries that are committed (`fuse_uring_do_register`,
/// `fuse_uring_commit_fetch` in `fs/fuse/dev_uring.c`). All other workers may be waiting for one of
/// those requests. So a thread makes a request on this processor, which owns the queue.
async fn wake_queue(shared: Arc<Shared>) {
    // By then the ring has submitted the registration.
    rt::sleep(REGISTER_DELAY).await;
    // A new thread inherits the processors of the thread that starts it.
    let waker = std::thread::Builder::new().name("fuse-wake".into());
    let woken = waker.spawn(move || sys::probe_xattr(shared.mount.mountpoint(), xattrs::WAKE_XATTR).err());
    if let Err(error) = woken {
        tracing::warn!(%error, "can't start a thread to wake a request queue of the kernel");
    }
}

/// An entry of a queue.
struct UringEntry {
    shared: Arc<Shared>,
    device: RawFd,
    queue: u16,
    /// Header page: headers of requests and replies.
    header: IoBuf,
    payload: IoBuf,
    /// Number of the request that is being handled.
    unique: u64,
    commit_id: u64,
}

impl UringEntry {
    fn new(shared: &Arc<Shared>, queue: usize, memory: &QueueMemory, index: usize) -> UringEntry {
        let (header, payload) = (memory.headers.piece(index), memory.payloads.piece(index));
        let (shared, device) = (shared.clone(), shared.mount.device());
        UringEntry { shared, device, queue: queue as u16, header, payload, unique: 0, commit_id: 0 }
    }

    /// Registers the entry. Returns when it holds its first request.
    async fn register(&self) -> i32 {
        let buffers = [
            self.header.as_ptr() as u64,
            abi::URING_HEADER_LEN as u64,
            self.payload.as_ptr() as u64,
            self.payload.len() as u64,
        ];
        for (index, word) in buffers.iter().enumerate() {
            self.header.copy_from(BUFFERS_OFFSET + index * 8, &word.to_ne_bytes());
        }
        let address = self.header.as_ptr() as u64 + BUFFERS_OFFSET as u64;
        for _ in 1..REGISTER_TRIES {
            match self.command(abi::URING_CMD_REGISTER, 0, address, BUFFERS).await {
                again if again == -libc::EAGAIN => rt::sleep(REGISTER_PAUSE).await,
                result => return result,
            }
        }
        -libc::EAGAIN
    }

    /// Commits a reply. Returns when the entry holds the next request.
    async fn commit(&self, reply: Outcome) -> i32 {
        let (len, error) = match reply {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.number()),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique: self.unique };
        self.header.copy_from(0, bytes_of(&header));
        let entry = UringEntInOut { commit_id: self.commit_id, payload_sz: len as u32, ..Default::default() };
        self.header.copy_from(abi::URING_ENT_OFFSET, bytes_of(&entry));
        match self.command(abi::URING_CMD_COMMIT_AND_FETCH, self.commit_id, 0, 0).await {
            // The end of the connection has just taken the request: nothing else takes requests.
            result if result == -libc::ENOENT => -libc::ENOTCONN,
            result => result,
        }
    }

    async fn command(&self, op: u32, commit_id: u64, address: u64, len: u32) -> i32 {
        let mut cmd = [0; 80];
        let request = UringCmdReq { commit_id, qid: self.queue, ..Default::default() };
        cmd[..size_of::<UringCmdReq>()].copy_from_slice(bytes_of(&request));
        let buffers = [Some(self.header.clone()), Some(self.payload.clone())];
        // SAFETY: the mount in `shared` keeps the device open; header page and payload stay mapped
        // for as long as the process lives (see `Arena`), so the kernel may use them even if this
        // future is dropped.
        unsafe { rt::ring::uring_cmd(self.device, (op, cmd), (address, len), buffers).await }
    }

    /// Returns the request in the buffers.
    fn request(&mut self) -> Request {
        let bytes = self.header.as_slice();
        let header: InHeader = abi::read(bytes).expect("the page is longer than the header");
        let entry: UringEntInOut =
            abi::read(&bytes[abi::URING_ENT_OFFSET..]).expect("the page is longer than the header");
        (self.unique, self.commit_id) = (header.unique, entry.commit_id);
        let args = abi::URING_OP_IN_OFFSET..abi::URING_OP_IN_OFFSET + abi::URING_OP_IN_LEN;
        let extensions = usize::from(header.total_extlen) * 8;
        // The kernel sends no length beyond the buffer; if it did, the decoder would refuse the
        // request, which is then without data.
        let data = (entry.payload_sz as usize).checked_sub(extensions).filter(|&n| n <= self.payload.len());
        Request {
            header,
            args: self.header.slice(args),
            data: self.payload.slice(0..data.unwrap_or(0)),
            out: self.payload.clone(),
        }
    }
}

impl Worker for UringEntry {
    async fn next_request(&mut self, reply: Option<Outcome>) -> Option<Request> {
        let result = match reply {
            None => self.register().await,
            Some(outcome) => self.commit(outcome).await,
        };
        if result >= 0 {
            return Some(self.request());
        }
        if !is_connection_end(-result) {
            // Without its entries a queue would hold its processor's callers forever: ending the
            // mount is better.
            let cause = io::Error::from_raw_os_error(-result);
            self.shared.abort_with(Error::new(
                Errno::Number(-result),
                format!("FUSE queue {}: {cause}", self.queue),
            ));
        }
        None
    }
}

/// Starts the thread that reads FORGET and INTERRUPT from the device.
fn start_one_way_reader(shared: &Arc<Shared>, alive: ThreadGuard) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    std::thread::Builder::new().name("fuse-oneway".into()).spawn(move || {
        read_one_way(&shared);
        alive.finish_normally();
    })
}

fn read_one_way(shared: &Shared) {
    // The kernel refuses reads into a buffer that is shorter than a whole WRITE.
    let mut buf = vec![0; size_of::<InHeader>() + size_of::<abi::WriteIn>() + shared.features.max_io];
    loop {
        let len = match sys::read(shared.mount.device(), &mut buf) {
            Ok(len) => len,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => continue,
            Err(e) if is_connection_end(errno(&e).number()) => return,
            Err(e) => return shared.abort_with(Error::new(errno(&e), format!("{}: {e}", sys::DEVICE))),
        };
        let Some(header) = abi::read::<InHeader>(&buf[..len]) else { continue };
        match OneWay::decode(&header, &buf[size_of::<InHeader>()..len]) {
            Some(one_way) => shared.handle_one_way(header.opcode, one_way),
            None => refuse(shared, &header),
        }
    }
}

/// Refuses a request that should have arrived over a queue; it can't be served here, outside the
/// runtime.
fn refuse(shared: &Shared, header: &InHeader) {
    tracing::error!(
        opcode = header.opcode,
        "a request arrived over the device although the queues are set up"
    );
    let len = size_of::<OutHeader>() as u32;
    let reply = OutHeader { len, error: -Errno::EIO.number(), unique: header.unique };
    // If the request was aborted meanwhile, the reply isn't needed.
    let _ = sys::write(shared.mount.device(), bytes_of(&reply));
}
