//! Accesses against the rule of [`IoBuf`], for tests of what happens then.

use super::IoBuf;

/// Changes a buffer that an operation may be reading, which [`IoBuf::copy_from`] would notice.
/// Panics when `data` doesn't fit.
pub fn overwrite(buf: &IoBuf, data: &[u8]) {
    buf.check(&(0..data.len()));
    // SAFETY: the range was checked. The kernel may read the memory meanwhile; a test doesn't care
    // what it reads.
    unsafe { std::ptr::copy(data.as_ptr(), buf.as_mut_ptr(), data.len()) }
}

/// The first byte of a buffer that an operation may be filling. Panics when the buffer is empty.
pub fn first_byte(buf: &IoBuf) -> u8 {
    buf.check(&(0..1));
    // SAFETY: the byte is inside of the buffer. The kernel may write it meanwhile; a test cares
    // only whether it has changed.
    unsafe { buf.as_ptr().read_volatile() }
}
