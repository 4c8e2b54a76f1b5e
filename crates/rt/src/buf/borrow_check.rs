//! Finds conflicting accesses to a buffer, in builds with debug assertions.
//!
//! The compiler can't check who may access a buffer: whether a request's payload is read or filled
//! depends on its operation, several targets fill one buffer piece by piece, and the payloads of
//! FUSE are memory that the kernel fills. So the rule of [`IoBuf`] is checked while the program runs,
//! as `RefCell` does for one thread. A buffer is borrowed for the time of an operation, also when the
//! operation's future was dropped. All tests run with this; a release build does without.

use super::IoBuf;
#[cfg(debug_assertions)]
use parking_lot::Mutex;

/// What an operation does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// It reads the buffer: nothing may change it meanwhile.
    Read,
    /// It fills the buffer: nothing may read or change it meanwhile.
    Write,
}

/// A buffer that an operation uses, until this is dropped.
pub(crate) struct Borrowed {
    buf: IoBuf,
    #[cfg(debug_assertions)]
    access: Access,
}

impl Borrowed {
    /// Borrows the buffer for an operation that begins.
    ///
    /// # Panics
    /// In a build with debug assertions, when another operation uses some of the buffer in a way
    /// that conflicts.
    pub(crate) fn new(buf: IoBuf, access: Access) -> Borrowed {
        if access == Access::Write {
            buf.discard_checksums();
        }
        #[cfg(debug_assertions)]
        {
            buf.borrows().lock().add(range_of(&buf), access);
            Borrowed { buf, access }
        }
        #[cfg(not(debug_assertions))]
        {
            Borrowed { buf }
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Pointer for the operation.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.buf.as_ptr()
    }

    /// Pointer for an operation that writes.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        #[cfg(debug_assertions)]
        assert_eq!(self.access, Access::Write, "the buffer was borrowed to be read");
        self.buf.ptr.as_ptr()
    }

    /// The operation fills the start of the buffer. Panics when `data` doesn't fit.
    pub(crate) fn fill(&self, data: &[u8]) {
        self.buf.check(&(0..data.len()));
        // SAFETY: the destination was checked; this operation has borrowed the buffer.
        unsafe { std::ptr::copy(data.as_ptr(), self.as_mut_ptr(), data.len()) }
    }

    /// The bytes, for an operation that reads.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.buf.as_slice()
    }
}

#[cfg(debug_assertions)]
impl Drop for Borrowed {
    fn drop(&mut self) {
        self.buf.borrows().lock().remove(range_of(&self.buf), self.access);
    }
}

#[cfg(debug_assertions)]
fn range_of(buf: &IoBuf) -> AddressRange {
    let start = buf.as_ptr() as usize;
    (start, start + buf.len())
}

/// Memory that buffers don't own.
#[cfg(debug_assertions)]
pub(super) static FOREIGN: Mutex<Borrows> = Mutex::new(Borrows(Vec::new()));

/// From the first address to the one after the last.
#[cfg(debug_assertions)]
type AddressRange = (usize, usize);

/// The parts of a piece of memory that operations use now.
#[cfg(debug_assertions)]
#[derive(Default)]
pub(super) struct Borrows(Vec<(AddressRange, Access)>);

#[cfg(debug_assertions)]
impl Borrows {
    fn add(&mut self, range: AddressRange, access: Access) {
        self.check(range, access);
        self.0.push((range, access));
    }

    fn remove(&mut self, range: AddressRange, access: Access) {
        let at = self.0.iter().position(|known| *known == (range, access));
        self.0.swap_remove(at.expect("a buffer is returned once"));
    }

    fn check(&self, (start, end): AddressRange, access: Access) {
        let conflicts = |&&((from, to), other): &&(AddressRange, Access)| {
            from < end && start < to && (access == Access::Write || other == Access::Write)
        };
        if let Some((_, other)) = self.0.iter().find(conflicts) {
            panic!("{access:?} access to a buffer that an operation uses for {other:?} access");
        }
    }
}

impl IoBuf {
    /// Panics in a build with debug assertions when an operation uses some of the buffer in a way
    /// that conflicts.
    pub(super) fn check_not_borrowed(&self, _range: std::ops::Range<usize>, _access: Access) {
        #[cfg(debug_assertions)]
        {
            let start = self.as_ptr() as usize;
            self.borrows().lock().check((start + _range.start, start + _range.end), _access);
        }
    }

    #[cfg(debug_assertions)]
    fn borrows(&self) -> &Mutex<Borrows> {
        self.owner.as_ref().map_or(&FOREIGN, |block| &block.borrows)
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn panics(act: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err()
    }

    #[test]
    fn a_buffer_that_is_being_filled_is_neither_read_nor_changed() {
        let buf = IoBuf::alloc(8192);
        let borrowed = Borrowed::new(buf.slice(0..4096), Access::Write);
        assert!(panics(|| drop(buf.as_slice().to_vec())));
        assert!(panics(|| buf.copy_from(4095, b"ab")));
        assert!(panics(|| drop(Borrowed::new(buf.slice(4000..5000), Access::Read))));
        buf.slice(4096..8192).copy_from(0, b"another part");
        borrowed.fill(b"data");
        drop(borrowed);
        assert_eq!(&buf.as_slice()[..4], b"data");
    }

    #[test]
    fn a_buffer_that_is_being_sent_is_read_but_not_changed() {
        let buf = IoBuf::alloc(4096);
        let (one, two) = (Borrowed::new(buf.clone(), Access::Read), Borrowed::new(buf.clone(), Access::Read));
        drop(one);
        assert_eq!(buf.as_slice().len(), 4096);
        assert!(panics(|| buf.zero(10..20)));
        assert!(panics(|| drop(Borrowed::new(buf.clone(), Access::Write))));
        drop(two);
        buf.zero(10..20);
    }

    #[test]
    fn foreign_memory_is_checked_as_well() {
        let memory = Box::leak(Box::new([0_u8; 64]));
        // SAFETY: the memory is leaked, and nothing else refers to it.
        let buf = unsafe { IoBuf::from_raw(memory.as_mut_ptr(), 64) };
        let borrowed = Borrowed::new(buf.slice(0..32), Access::Write);
        assert!(panics(|| drop(buf.slice(31..33).as_slice().to_vec())));
        assert_eq!(buf.slice(32..64).as_slice(), [0; 32]);
        drop(borrowed);
    }
}
