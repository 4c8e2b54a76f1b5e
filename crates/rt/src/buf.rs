//! Memory that the kernel reads from and writes into.

mod borrow_check;
#[doc(hidden)]
pub mod careless;

pub(crate) use borrow_check::{Access, Borrowed};

use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use types::BLOCK_SIZE;

/// Required by direct I/O: addresses, lengths and offsets are multiples of this.
pub const IO_ALIGNMENT: usize = 4096;

/// Larger blocks are returned to the allocator instead of the pool.
const MAX_POOLED_BLOCK_BYTES: usize = 1 << 20;
/// Size classes: 4 KiB, 8 KiB, ... 1 MiB.
const CLASSES: usize = (MAX_POOLED_BLOCK_BYTES / IO_ALIGNMENT).trailing_zeros() as usize + 1;
/// Memory that one thread pools for reuse; enough for a burst of large requests, small compared
/// with the page cache.
const MAX_POOLED_BYTES_PER_THREAD: usize = 16 << 20;

/// A handle to a piece of memory for I/O. Clones and slices share the memory and are cheap.
///
/// The memory is either 4 KiB-aligned heap memory, reused within a thread, or memory that is mapped
/// elsewhere for as long as the process lives (the payload buffers of the kernel's file protocol).
/// Contents of a new buffer are unspecified.
///
/// The type doesn't synchronize access. A layer that passes a buffer on doesn't access it until it
/// gets it back. The rule between the layers, and with the kernel, is: one writer at a time, and no
/// reader while it writes. Builds with debug assertions check it for all operations of this crate,
/// and panic where it is broken.
#[derive(Clone)]
pub struct IoBuf {
    /// Keeps heap memory alive; `None` for memory that is never freed.
    owner: Option<Arc<Block>>,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory outlives the handle wherever it is, since the owner is counted atomically or
// the memory is never freed.
unsafe impl Send for IoBuf {}
// SAFETY: the handle's own fields never change; access to the memory follows the one-writer
// protocol of the type's documentation.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Allocates `len` bytes, aligned for direct I/O.
    pub fn alloc(len: usize) -> IoBuf {
        let block = Block::new(len);
        let ptr = block.ptr;
        IoBuf { owner: Some(Arc::new(block)), ptr, len }
    }

    /// A buffer with a copy of `data`.
    pub fn from_slice(data: &[u8]) -> IoBuf {
        let buf = IoBuf::alloc(data.len());
        buf.copy_from(0, data);
        buf
    }

    /// A handle to memory that this type doesn't own.
    ///
    /// # Safety
    /// `ptr..ptr + len` must be readable and writable for as long as the process lives, and `ptr`
    /// must not be null.
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> IoBuf {
        let ptr = NonNull::new(ptr).expect("the caller vouches for the pointer");
        IoBuf { owner: None, ptr, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether direct I/O accepts address and length.
    pub fn is_aligned(&self) -> bool {
        (self.ptr.as_ptr() as usize).is_multiple_of(IO_ALIGNMENT) && self.len.is_multiple_of(IO_ALIGNMENT)
    }

    /// Whether checksums can be noted: this handle covers a whole buffer that this type owns, and
    /// consists of whole blocks.
    pub fn can_note_checksums(&self) -> bool {
        self.whole_block(self.len / BLOCK_SIZE).is_some()
    }

    /// Notes the CRC32C of each block ([`types::block_crcs`]) for later use, where
    /// [`IoBuf::can_note_checksums`]. They are discarded when the memory is changed through any
    /// handle.
    pub fn note_checksums(&self, sums: Vec<u32>) {
        self.note(sums, ChecksumOrigin::Content);
    }

    /// Notes the stored CRC32C of each block, not verified against the content. Only where
    /// [`IoBuf::defers_verification`].
    pub fn note_stored_checksums(&self, sums: Vec<u32>) {
        self.note(sums, ChecksumOrigin::Stored);
    }

    fn note(&self, sums: Vec<u32>, origin: ChecksumOrigin) {
        if let Some(block) = self.whole_block(sums.len()) {
            *block.sums.lock() = BlockChecksums { origin, blocks: sums };
            block.has_sums.store(true, Ordering::Release);
        }
    }

    /// Applies `make` to the CRC32C of each block, if they were noted.
    pub fn with_checksums<T>(&self, make: impl FnOnce(&[u32]) -> T) -> Option<T> {
        self.with_sums_of(ChecksumOrigin::Content, make)
    }

    /// The same for stored checksums that weren't verified.
    pub fn with_stored_checksums<T>(&self, make: impl FnOnce(&[u32]) -> T) -> Option<T> {
        self.with_sums_of(ChecksumOrigin::Stored, make)
    }

    fn with_sums_of<T>(&self, origin: ChecksumOrigin, make: impl FnOnce(&[u32]) -> T) -> Option<T> {
        let block = self.owner.as_ref().filter(|block| block.has_sums.load(Ordering::Acquire))?;
        let sums = block.sums.lock();
        let is_of_this = sums.origin == origin && self.whole_block(sums.blocks.len()).is_some();
        is_of_this.then(|| make(&sums.blocks))
    }

    /// Allows the code that fills this buffer with stored data to leave the verification of
    /// checksums to the recipient.
    pub fn defer_verification(&self) {
        if let Some(block) = self.owner.as_ref().filter(|_| self.can_note_checksums()) {
            block.defers_verification.store(true, Ordering::Release);
        }
    }

    /// Whether that is allowed: then it is enough to note the stored checksums
    /// ([`IoBuf::note_stored_checksums`]).
    pub fn defers_verification(&self) -> bool {
        self.owner.as_ref().is_some_and(|block| block.defers_verification.load(Ordering::Acquire))
            && self.can_note_checksums()
    }

    /// The block, if this handle covers all of its used part, and that is `blocks` blocks long.
    fn whole_block(&self, blocks: usize) -> Option<&Block> {
        let block = self.owner.as_deref()?;
        (block.len == self.len && block.ptr == self.ptr && blocks > 0 && blocks * BLOCK_SIZE == self.len)
            .then_some(block)
    }

    /// Discards the noted checksums because the memory is about to be changed.
    pub(crate) fn discard_checksums(&self) {
        if let Some(block) = self.owner.as_ref().filter(|block| block.has_sums.load(Ordering::Acquire)) {
            block.has_sums.store(false, Ordering::Release);
            block.sums.lock().blocks.clear();
        }
    }

    /// A part of the buffer, sharing its memory. Panics when `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> IoBuf {
        self.check(&range);
        // SAFETY: the range was checked to lie inside this buffer.
        let ptr = unsafe { self.ptr.add(range.start) };
        IoBuf { owner: self.owner.clone(), ptr, len: range.len() }
    }

    /// The bytes. The caller must ensure that nothing writes meanwhile, including the kernel.
    pub fn as_slice(&self) -> &[u8] {
        self.check_not_borrowed(0..self.len, Access::Read);
        // SAFETY: ptr and len describe initialised memory (zeroed when first allocated) that lives
        // as long as `self`; that nothing writes meanwhile is the type's protocol.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Mutable access to the bytes, if no other handle to the memory exists: no clone, no slice, no
    /// operation in progress. `None` for memory that this type doesn't own.
    pub fn exclusive(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(self.owner.as_mut()?)?;
        self.discard_checksums();
        // SAFETY: the only handle is borrowed for as long as the result lives; ptr and len describe
        // initialised memory of its block.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }

    /// Copies `data` to offset `at`. Panics when it doesn't fit. `data` may be a part of the same
    /// memory.
    pub fn copy_from(&self, at: usize, data: &[u8]) {
        self.check(&(at..at.saturating_add(data.len())));
        self.check_not_borrowed(at..at + data.len(), Access::Write);
        self.discard_checksums();
        // SAFETY: the destination was checked; `copy` allows overlap; one writer at a time is the
        // type's protocol.
        unsafe { std::ptr::copy(data.as_ptr(), self.ptr.as_ptr().add(at), data.len()) }
    }

    /// Fills a range with zeros. Panics when it is out of bounds.
    pub fn zero(&self, range: Range<usize>) {
        self.check(&range);
        self.check_not_borrowed(range.clone(), Access::Write);
        self.discard_checksums();
        // SAFETY: the range was checked; one writer at a time is the type's protocol.
        unsafe { std::ptr::write_bytes(self.ptr.as_ptr().add(range.start), 0, range.len()) }
    }

    /// Address of the memory.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Pointer to the memory, for code that changes it. Noted checksums are discarded.
    ///
    /// # Safety
    /// As long as the memory is changed through the pointer, nothing else accesses it, and the
    /// pointer isn't used after the last handle is gone.
    pub unsafe fn as_mut_ptr(&self) -> *mut u8 {
        self.discard_checksums();
        self.ptr.as_ptr()
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} outside of a buffer of {} bytes",
            self.len
        );
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({:p}, {} bytes)", self.ptr, self.len)
    }
}

/// One allocation; returned to the pool of the thread that drops it.
struct Block {
    ptr: NonNull<u8>,
    /// The requested length.
    len: usize,
    capacity: usize,
    /// Noted checksums of the content.
    sums: Mutex<BlockChecksums>,
    has_sums: AtomicBool,
    /// The recipient verifies the content against its checksums.
    defers_verification: AtomicBool,
    #[cfg(debug_assertions)]
    borrows: Mutex<borrow_check::Borrows>,
}

/// CRC32C of each block.
#[derive(Default)]
struct BlockChecksums {
    origin: ChecksumOrigin,
    blocks: Vec<u32>,
}

/// Origin of checksums.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum ChecksumOrigin {
    /// Computed from the content, or verified against it.
    #[default]
    Content,
    /// Stored with the content, not verified.
    Stored,
}

// SAFETY: a block owns its memory, and any thread may free it.
unsafe impl Send for Block {}
// SAFETY: a shared block exposes nothing but its address.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Block {
        let capacity = capacity_for(len);
        let pooled = class_of(capacity)
            .and_then(|class| POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten());
        let ptr = pooled.unwrap_or_else(|| allocate(capacity));
        Block {
            ptr,
            len,
            capacity,
            sums: Mutex::default(),
            has_sums: AtomicBool::new(false),
            defers_verification: AtomicBool::new(false),
            #[cfg(debug_assertions)]
            borrows: Mutex::default(),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let pooled = class_of(self.capacity).is_some_and(|class| {
            POOL.try_with(|pool| pool.borrow_mut().give(class, self.ptr)).unwrap_or(false)
        });
        if !pooled {
            free(self.ptr, self.capacity);
        }
    }
}

/// Free blocks by size class.
struct Pool {
    free: [Vec<NonNull<u8>>; CLASSES],
    bytes: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { free: [const { Vec::new() }; CLASSES], bytes: 0 }) };
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let block = self.free[class].pop()?;
        self.bytes -= IO_ALIGNMENT << class;
        Some(block)
    }

    /// Pools a block; returns false if the pool is full.
    fn give(&mut self, class: usize, block: NonNull<u8>) -> bool {
        let size = IO_ALIGNMENT << class;
        if self.bytes + size > MAX_POOLED_BYTES_PER_THREAD {
            return false;
        }
        self.bytes += size;
        self.free[class].push(block);
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (class, blocks) in self.free.iter_mut().enumerate() {
            blocks.drain(..).for_each(|block| free(block, IO_ALIGNMENT << class));
        }
    }
}

/// Rounds up to a size class, or to the alignment for large blocks.
fn capacity_for(len: usize) -> usize {
    let len = len.max(IO_ALIGNMENT);
    if len <= MAX_POOLED_BLOCK_BYTES { len.next_power_of_two() } else { len.next_multiple_of(IO_ALIGNMENT) }
}

fn class_of(capacity: usize) -> Option<usize> {
    (capacity <= MAX_POOLED_BLOCK_BYTES).then(|| (capacity / IO_ALIGNMENT).trailing_zeros() as usize)
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, IO_ALIGNMENT).expect("a buffer's size is far below the address space")
}

fn allocate(capacity: usize) -> NonNull<u8> {
    let layout = layout(capacity);
    // SAFETY: the capacity is never zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

fn free(ptr: NonNull<u8>, capacity: usize) {
    // SAFETY: every block comes from `allocate` with the same capacity.
    unsafe { dealloc(ptr.as_ptr(), layout(capacity)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_zeroed_and_aligned() {
        let buf = IoBuf::alloc(3 << 20);
        assert!(buf.is_aligned());
        assert!(buf.as_slice() == vec![0; 3 << 20]);
        assert!(!IoBuf::alloc(100).is_aligned());
    }

    #[test]
    fn slices_share_memory() {
        let buf = IoBuf::alloc(8192);
        buf.slice(4096..8192).copy_from(1, b"abc");
        assert_eq!(&buf.as_slice()[4097..4100], b"abc");
        buf.zero(4098..4099);
        assert_eq!(&buf.slice(4097..4100).as_slice(), b"a\0c");
    }

    #[test]
    fn memory_is_exclusive_while_there_is_no_other_handle() {
        let mut buf = IoBuf::alloc(100);
        buf.exclusive().unwrap()[99] = 7;
        assert_eq!(buf.as_slice()[99], 7);
        let part = buf.slice(0..1);
        assert!(buf.exclusive().is_none());
        drop(buf);
        // A slice that is the last handle gives access to its own bytes only.
        let mut part = part;
        assert_eq!(part.exclusive().unwrap().len(), 1);
    }

    #[test]
    fn memory_is_reused_only_after_the_last_handle() {
        let first = IoBuf::alloc(64 << 10);
        let address = first.as_ptr();
        let part = first.slice(0..10);
        drop(first);
        assert_ne!(IoBuf::alloc(64 << 10).as_ptr(), address);
        drop(part);
        assert_eq!(IoBuf::alloc(33 << 10).as_ptr(), address);
    }

    #[test]
    fn sums_last_until_the_memory_is_changed() {
        let buf = IoBuf::alloc(2 * BLOCK_SIZE);
        let note = || buf.note_checksums(vec![1, 2]);
        note();
        assert_eq!(buf.clone().with_checksums(<[u32]>::to_vec).unwrap(), [1, 2]);
        let first = buf.slice(0..BLOCK_SIZE);
        first.note_checksums(vec![7]);
        assert!(!first.can_note_checksums() && first.with_checksums(drop_sums).is_none());
        assert_eq!(buf.with_checksums(<[u32]>::len), Some(2), "they are of the whole");
        first.copy_from(1, b"a");
        assert!(buf.with_checksums(drop_sums).is_none());
        note();
        buf.slice(100..200).zero(0..1);
        assert!(buf.with_checksums(drop_sums).is_none());
        note();
        drop(first);
        let mut buf = buf;
        assert!(buf.exclusive().is_some() && buf.with_checksums(drop_sums).is_none());
        buf.note_checksums(vec![1]);
        assert!(buf.with_checksums(drop_sums).is_none(), "not as many as blocks");
        // The memory is reused; the noted checksums aren't.
        buf.note_checksums(vec![1, 2]);
        let address = buf.as_ptr();
        drop(buf);
        let next = IoBuf::alloc(2 * BLOCK_SIZE);
        assert_eq!(next.as_ptr(), address);
        assert!(next.with_checksums(drop_sums).is_none());
        assert!(!IoBuf::alloc(0).can_note_checksums() && !IoBuf::alloc(BLOCK_SIZE + 1).can_note_checksums());
    }

    #[test]
    fn stored_sums_are_not_taken_for_those_of_the_content() {
        let buf = IoBuf::alloc(2 * BLOCK_SIZE);
        assert!(!buf.defers_verification());
        buf.defer_verification();
        assert!(buf.defers_verification() && !buf.slice(0..BLOCK_SIZE).defers_verification());
        buf.note_stored_checksums(vec![1, 2]);
        assert!(buf.with_checksums(drop_sums).is_none());
        assert_eq!(buf.with_stored_checksums(<[u32]>::to_vec).unwrap(), [1, 2]);
        // Verified checksums are noted as such.
        buf.note_checksums(vec![1, 2]);
        assert!(buf.with_stored_checksums(drop_sums).is_none() && buf.with_checksums(drop_sums).is_some());
        buf.note_stored_checksums(vec![1, 2]);
        buf.zero(0..1);
        assert!(buf.with_stored_checksums(drop_sums).is_none());
        let unaligned = IoBuf::alloc(100);
        unaligned.defer_verification();
        assert!(!unaligned.defers_verification());
    }

    fn drop_sums(_: &[u32]) {}

    /// A buffer may be filled by one thread and freed by another: it then belongs to that one's
    /// pool.
    #[test]
    fn buffers_move_between_threads() {
        let (sender, receiver) = std::sync::mpsc::channel::<IoBuf>();
        let reader = std::thread::spawn(move || {
            receiver.into_iter().map(|buf| u32::from(buf.as_slice()[99])).sum::<u32>()
        });
        for byte in 0..10 {
            let buf = IoBuf::alloc(100);
            buf.copy_from(99, &[byte]);
            sender.send(buf.slice(0..100)).unwrap();
        }
        drop(sender);
        assert_eq!(reader.join().unwrap(), 45);
    }

    #[test]
    fn the_pool_is_bounded() {
        let all: Vec<IoBuf> = (0..40).map(|_| IoBuf::alloc(1 << 20)).collect();
        drop(all);
        assert!(POOL.with(|pool| pool.borrow().bytes) <= MAX_POOLED_BYTES_PER_THREAD);
    }

    #[test]
    #[should_panic(expected = "outside of a buffer")]
    fn slices_are_checked() {
        IoBuf::alloc(10).slice(5..11);
    }
}
