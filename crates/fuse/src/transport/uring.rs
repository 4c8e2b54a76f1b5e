//! Requests over io_uring: a queue for every processor, and for every queue a pinned thread with
//! entries that each carry one request.
//!
//! The kernel sends a request to the queue of the processor that its caller runs on, so that caller
//! and server share a core and no other one is woken. No queue may lack entries: the kernel holds
//! all requests back until every queue has its first, and nothing moves a request from one queue to
//! another.
//!
//! FORGET and INTERRUPT don't come this way; a plain thread reads them from the device.

use super::lanes::{Core, Lane, Outcome};
use super::{Arena, Cpus, is_end};
use crate::abi::{self, InHeader, OutHeader, UringCmdReq, UringEntInOut, bytes_of};
use crate::dispatch::xattrs;
use crate::init::PAGE;
use crate::mount::errno;
use crate::request::{OneWay, Request};
use crate::session::{Alive, Shared};
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

/// Where, in an entry's header page behind the header proper, the pair of buffers is described to
/// the kernel.
const BUFFERS_OFFSET: usize = 1024;
/// Number of those buffers: header and payload.
const BUFFERS: u32 = 2;
/// How long after it was added an entry is surely registered.
const REGISTER_SUBMITTED: Duration = Duration::from_millis(2);
/// How often a registration is tried while the kernel isn't ready for it, and how long it waits in
/// between.
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

/// Starts a thread for every queue and the reader of one-way requests.
pub(super) fn start(shared: &Arc<Shared>, cpus: &Cpus, depth: usize) -> io::Result<Vec<JoinHandle<()>>> {
    let queues = cpus.possible();
    let depth = super::lanes_per_core(depth, queues, shared.agreement.max_io);
    let memory: io::Result<Vec<_>> =
        (0..queues).map(|_| QueueMemory::new(depth, shared.agreement.max_io)).collect();
    let mut alive: Vec<Alive> = (0..=queues).map(|_| shared.enter()).collect();
    shared.expect_cores(queues);
    let mut threads = vec![start_reader(shared, alive.pop().expect("one guard for each thread was made"))?];
    for ((queue, memory), alive) in memory?.into_iter().enumerate().zip(alive) {
        let config = CoreConfig { name: format!("fuse-{queue}"), cpu: cpus.pin(queue), batch: true };
        let shared = shared.clone();
        threads.push(rt::start_core(config, move || async move {
            run_queue(shared, queue, memory).await;
            alive.leave();
        })?);
    }
    Ok(threads)
}

async fn run_queue(shared: Arc<Shared>, queue: usize, memory: QueueMemory) {
    let core = Core::new(shared, queue);
    let spares = Rc::new(RefCell::new(Vec::new()));
    let weak = Rc::downgrade(&core);
    let kept = spares.clone();
    core.set_add_lane(move || {
        let Some(core) = weak.upgrade() else { return Ok(()) };
        let memory = QueueMemory::new(1, core.shared.agreement.max_io)?;
        core.run_lane(Entry::new(&core.shared, queue, &memory, 0));
        kept.borrow_mut().push(memory);
        rt::spawn(wake_queue(core.shared.clone()));
        Ok(())
    });
    for index in 0..memory.headers.count() {
        core.run_lane(Entry::new(&core.shared, queue, &memory, index));
    }
    core.finish().await;
    // Only now does nobody use the buffers any more.
    drop((memory, spares));
}

/// Gets the kernel to hand over what waits in this thread's queue, of which an entry was added a
/// moment ago.
///
/// The kernel gives an entry that is registered the next request that is made, and none of those
/// that wait already: these go to entries that are handed back (`fuse_uring_do_register`,
/// `fuse_uring_commit_fetch` in `fs/fuse/dev_uring.c`). When all other lanes wait, that may be for
/// one of these. So a request is made, on this processor, whose queue it is.
async fn wake_queue(shared: Arc<Shared>) {
    // By then the ring has handed the registration in.
    rt::sleep(REGISTER_SUBMITTED).await;
    // A thread is started on the processors of the one that starts it.
    let waker = std::thread::Builder::new().name("fuse-wake".into());
    let woken = waker.spawn(move || sys::ask_for_xattr(shared.mount.mountpoint(), xattrs::WAKE).err());
    if let Err(error) = woken {
        tracing::warn!(%error, "no thread can be started to wake a queue of the kernel's requests");
    }
}

/// An entry of a queue.
struct Entry {
    shared: Arc<Shared>,
    device: RawFd,
    queue: u16,
    /// Header page: what accompanies requests and replies.
    header: IoBuf,
    payload: IoBuf,
    /// The request that is being handled.
    unique: u64,
    commit_id: u64,
}

impl Entry {
    fn new(shared: &Arc<Shared>, queue: usize, memory: &QueueMemory, index: usize) -> Entry {
        let (header, payload) = (memory.headers.piece(index), memory.payloads.piece(index));
        let (shared, device) = (shared.clone(), shared.mount.device());
        Entry { shared, device, queue: queue as u16, header, payload, unique: 0, commit_id: 0 }
    }

    /// Offers the entry; comes back with its first request.
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

    /// Hands in a reply; comes back with the next request.
    async fn commit(&self, reply: Outcome) -> i32 {
        let (len, error) = match reply {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.0),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique: self.unique };
        self.header.copy_from(0, bytes_of(&header));
        let entry = UringEntInOut { commit_id: self.commit_id, payload_sz: len as u32, ..Default::default() };
        self.header.copy_from(abi::URING_ENT_OFFSET, bytes_of(&entry));
        match self.command(abi::URING_CMD_COMMIT_AND_FETCH, self.commit_id, 0, 0).await {
            // The end of the connection has taken the request a moment ago: nobody else takes any.
            result if result == -libc::ENOENT => -libc::ENOTCONN,
            result => result,
        }
    }

    async fn command(&self, op: u32, commit_id: u64, address: u64, len: u32) -> i32 {
        let mut cmd = [0; 80];
        let request = UringCmdReq { commit_id, qid: self.queue, ..Default::default() };
        cmd[..size_of::<UringCmdReq>()].copy_from_slice(bytes_of(&request));
        // SAFETY: the mount in `shared` keeps the device open; header page and payload stay mapped
        // for as long as the process lives (see `Arena`), so the kernel may use them even if this
        // future is dropped.
        unsafe { rt::ring::uring_cmd(self.device, op, cmd, address, len).await }
    }

    /// The request that lies in the buffers.
    fn request(&mut self) -> Request {
        let bytes = self.header.as_slice();
        let header: InHeader = abi::read(bytes).expect("the page is longer than the header");
        let entry: UringEntInOut =
            abi::read(&bytes[abi::URING_ENT_OFFSET..]).expect("the page is longer than the header");
        (self.unique, self.commit_id) = (header.unique, entry.commit_id);
        let args = abi::URING_OP_IN_OFFSET..abi::URING_OP_IN_OFFSET + abi::URING_OP_IN_LEN;
        let extensions = usize::from(header.total_extlen) * 8;
        // A length beyond the buffer can't be; the request without its data is then refused when it
        // is decoded.
        let data = (entry.payload_sz as usize).checked_sub(extensions).filter(|&n| n <= self.payload.len());
        Request {
            header,
            args: self.header.slice(args),
            data: self.payload.slice(0..data.unwrap_or(0)),
            out: self.payload.clone(),
        }
    }
}

impl Lane for Entry {
    async fn exchange(&mut self, reply: Option<Outcome>) -> Option<Request> {
        let result = match reply {
            None => self.register().await,
            Some(outcome) => self.commit(outcome).await,
        };
        if result >= 0 {
            return Some(self.request());
        }
        if !is_end(-result) {
            // Without its entries a queue would hold its processor's callers for ever: better no
            // mount than that.
            let cause = io::Error::from_raw_os_error(-result);
            self.shared.fail(Error::new(Errno(-result), format!("FUSE queue {}: {cause}", self.queue)));
        }
        None
    }
}

/// Starts the thread that takes FORGET and INTERRUPT from the device.
fn start_reader(shared: &Arc<Shared>, alive: Alive) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    std::thread::Builder::new().name("fuse-oneway".into()).spawn(move || {
        read_one_way(&shared);
        alive.leave();
    })
}

fn read_one_way(shared: &Shared) {
    // The kernel refuses reads into less than a whole WRITE.
    let mut buf = vec![0; size_of::<InHeader>() + size_of::<abi::WriteIn>() + shared.agreement.max_io];
    loop {
        let len = match sys::read(shared.mount.device(), &mut buf) {
            Ok(len) => len,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => continue,
            Err(e) if is_end(errno(&e).0) => return,
            Err(e) => return shared.fail(Error::new(errno(&e), format!("{}: {e}", sys::DEVICE))),
        };
        let Some(header) = abi::read::<InHeader>(&buf[..len]) else { continue };
        match OneWay::decode(&header, &buf[size_of::<InHeader>()..len]) {
            Some(one_way) => shared.one_way(header.opcode, one_way),
            None => refuse(shared, &header),
        }
    }
}

/// Answers a request that should have come over a queue; it can't be served here, away from the
/// runtime.
fn refuse(shared: &Shared, header: &InHeader) {
    tracing::error!(opcode = header.opcode, "a request came over the device though the queues are set up");
    let len = size_of::<OutHeader>() as u32;
    let reply = OutHeader { len, error: -Errno::EIO.0, unique: header.unique };
    // If the request was given up meanwhile, nobody waits for the reply.
    let _ = sys::write(shared.mount.device(), bytes_of(&reply));
}
