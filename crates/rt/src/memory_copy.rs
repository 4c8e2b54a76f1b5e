//! `memcpy`, `memmove` and `memset` of programs that are linked with musl. Those of musl use string
//! instructions by words, which take 15 to 90 ns where a few loads and stores take 2 to 4 (most
//! copies are of less than 256 bytes), and 500 us for a MiB that moves upwards. As in
//! [`crate::memory_compare`], the linker takes a function from the C library only if the program has
//! none. Without optimisation the compiler turns the loads and stores below into calls of `memcpy`,
//! so that debug builds use the library's.
//!
//! Sizes up to 64 bytes are loaded whole before anything is stored, as overlapping pieces from both
//! ends, so that any overlap of source and destination is right.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::ffi::c_int;

/// Keeps the functions in the program: only code that the compiler generates later calls them.
#[cfg(all(target_env = "musl", not(debug_assertions)))]
#[used]
static KEPT: (CopyFunction, CopyFunction, FillFunction) = (memcpy, memmove, memset);
#[cfg(all(target_env = "musl", not(debug_assertions)))]
type CopyFunction = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;
#[cfg(all(target_env = "musl", not(debug_assertions)))]
type FillFunction = unsafe extern "C" fn(*mut u8, c_int, usize) -> *mut u8;

/// From this size on, processors copy faster by a string instruction than by a loop of ours.
#[cfg(target_arch = "x86_64")]
const STRING_INSTRUCTION_MIN: usize = 2048;

/// Bytes of a round of the loops.
const BLOCK: usize = 4 * WIDE;
const WIDE: usize = size_of::<u128>();

/// Copies as the C library's function does, and returns `to`.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`, and they don't overlap.
#[cfg_attr(all(target_env = "musl", not(debug_assertions)), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        if len <= BLOCK {
            copy_small(to, from, len);
        } else {
            copy_apart(to, from, len);
        }
    }
    to
}

/// Copies as [`memcpy`]; source and destination may overlap.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`.
#[cfg_attr(all(target_env = "musl", not(debug_assertions)), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        if len <= BLOCK {
            copy_small(to, from, len);
        } else if to.addr().abs_diff(from.addr()) >= len {
            copy_apart(to, from, len);
        } else if to.addr() < from.addr() {
            copy_forward(to, from, len);
        } else {
            copy_backward(to, from, len);
        }
    }
    to
}

/// Sets all bytes to the lowest byte of `value`, and returns `to`.
///
/// # Safety
/// `len` bytes can be written at `to`.
#[cfg_attr(all(target_env = "musl", not(debug_assertions)), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn memset(to: *mut u8, value: c_int, len: usize) -> *mut u8 {
    let byte = value.to_le_bytes()[0];
    let wide = u128::from_ne_bytes([byte; WIDE]);
    // SAFETY: the caller vouches for the memory; each store is within it.
    unsafe {
        match len {
            BLOCK.. => fill_large(to, wide, len),
            32.. => {
                store(to, wide);
                store(to.add(WIDE), wide);
                store(to.add(len - 2 * WIDE), wide);
                store(to.add(len - WIDE), wide);
            }
            16.. => fill_ends(to, wide, len),
            8.. => fill_ends(to, wide as u64, len),
            4.. => fill_ends(to, wide as u32, len),
            2.. => fill_ends(to, wide as u16, len),
            1 => store(to, byte),
            0 => {}
        }
    }
    to
}

/// # Safety
/// As for [`memmove`]; at most [`BLOCK`] bytes.
#[inline(always)]
unsafe fn copy_small(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: each call has a piece of at most `len` bytes.
    unsafe {
        match len {
            33.. => {
                let half = |from: *const u8| (load::<u128>(from), load::<u128>(from.add(WIDE)));
                let (first, last) = (half(from), half(from.add(len - 2 * WIDE)));
                store(to, first.0);
                store(to.add(WIDE), first.1);
                store(to.add(len - 2 * WIDE), last.0);
                store(to.add(len - WIDE), last.1);
            }
            17..=32 => copy_ends::<u128>(to, from, len),
            8..=16 => copy_ends::<u64>(to, from, len),
            4..=7 => copy_ends::<u32>(to, from, len),
            2..=3 => copy_ends::<u16>(to, from, len),
            1 => copy_ends::<u8>(to, from, len),
            0 => {}
        }
    }
}

/// # Safety
/// `len` bytes can be written; `len` is at least the size of a piece.
#[inline(always)]
unsafe fn fill_ends<Piece: Copy>(to: *mut u8, piece: Piece, len: usize) {
    // SAFETY: both pieces are within `len`.
    unsafe {
        store(to, piece);
        store(to.add(len - size_of::<Piece>()), piece);
    }
}

/// # Safety
/// `len` bytes can be written; at least [`BLOCK`].
#[inline(always)]
unsafe fn fill_large(to: *mut u8, wide: u128, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STRING_INSTRUCTION_MIN {
        // SAFETY: as in `copy_apart`.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") wide as u8,
                options(nostack, preserves_flags));
        }
        return;
    }
    let end = len - BLOCK;
    let block = (wide, wide, wide, wide);
    // SAFETY: each block is within `len`.
    unsafe {
        let mut at = 0;
        while at < end {
            store_block(to.add(at), block);
            at += BLOCK;
        }
        store_block(to.add(end), block);
    }
}

/// Copies a piece from the start and one from the end, which overlap unless they are all of it.
///
/// # Safety
/// As for [`memmove`]; `len` is at least the size of a piece, and at most twice that.
#[inline(always)]
unsafe fn copy_ends<Piece: Copy>(to: *mut u8, from: *const u8, len: usize) {
    let end = len - size_of::<Piece>();
    // SAFETY: both pieces are within `len`.
    unsafe {
        let (first, last) = (load::<Piece>(from), load::<Piece>(from.add(end)));
        store(to, first);
        store(to.add(end), last);
    }
}

/// # Safety
/// As for [`memcpy`]; more than [`BLOCK`] bytes.
#[inline(always)]
unsafe fn copy_apart(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STRING_INSTRUCTION_MIN {
        // SAFETY: the instruction reads and writes `len` bytes; the direction is forward wherever
        // compiled code runs.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    // SAFETY: the caller vouches for the memory.
    unsafe { copy_forward(to, from, len) }
}

/// # Safety
/// As for [`memmove`]; more than [`BLOCK`] bytes, and the destination isn't above the start of the
/// source within it.
#[inline(always)]
unsafe fn copy_forward(to: *mut u8, from: *const u8, len: usize) {
    let end = len - BLOCK;
    // SAFETY: each block is within `len`. A block is stored below what is still to be loaded, and
    // the last one was loaded first.
    unsafe {
        let last = load_block(from.add(end));
        let mut at = 0;
        while at < end {
            store_block(to.add(at), load_block(from.add(at)));
            at += BLOCK;
        }
        store_block(to.add(end), last);
    }
}

/// # Safety
/// As for [`memmove`]; more than [`BLOCK`] bytes, and the destination isn't below the source.
#[inline(always)]
unsafe fn copy_backward(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: each block is within `len`. A block is stored above what is still to be loaded, and
    // the first one was loaded first.
    unsafe {
        let first = load_block(from);
        let mut end = len;
        while end > BLOCK {
            end -= BLOCK;
            store_block(to.add(end), load_block(from.add(end)));
        }
        store_block(to, first);
    }
}

/// Separate values stay in registers; an array would pass through the stack.
///
/// # Safety
/// [`BLOCK`] bytes can be read.
#[inline(always)]
unsafe fn load_block(from: *const u8) -> (u128, u128, u128, u128) {
    // SAFETY: the caller vouches for the memory.
    unsafe { (load(from), load(from.add(WIDE)), load(from.add(2 * WIDE)), load(from.add(3 * WIDE))) }
}

/// # Safety
/// [`BLOCK`] bytes can be written.
#[inline(always)]
unsafe fn store_block(to: *mut u8, block: (u128, u128, u128, u128)) {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        store(to, block.0);
        store(to.add(WIDE), block.1);
        store(to.add(2 * WIDE), block.2);
        store(to.add(3 * WIDE), block.3);
    }
}

/// # Safety
/// The piece can be read.
#[inline(always)]
unsafe fn load<Piece: Copy>(from: *const u8) -> Piece {
    // SAFETY: the caller vouches for the memory.
    unsafe { from.cast::<Piece>().read_unaligned() }
}

/// # Safety
/// The piece can be written.
#[inline(always)]
unsafe fn store<Piece: Copy>(to: *mut u8, piece: Piece) {
    // SAFETY: the caller vouches for the memory.
    unsafe { to.cast::<Piece>().write_unaligned(piece) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lengths around all limits of the cases.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0..300_usize, 2030..2070_usize, 4090..4100_usize]
    }

    proptest! {
        #[test]
        fn copies_equal_those_of_the_library(
            len in lengths(),
            from in 0..4200_usize,
            distance in -200..200_isize,
            overlapping in any::<bool>(),
        ) {
            let mut bytes: Vec<u8> = (0..16_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let to = if overlapping { (from + 200).checked_add_signed(distance).unwrap() } else { from + 200 + len };
            let from = from + 200;
            let mut expected = bytes.clone();
            expected.copy_within(from..from + len, to);
            let memory = bytes.as_mut_ptr();
            // SAFETY: both ranges are within the vector; `memcpy` has them apart.
            let returned = unsafe {
                let (to, from) = (memory.add(to), memory.add(from).cast_const());
                let returned = if overlapping { memmove(to, from, len) } else { memcpy(to, from, len) };
                returned.offset_from(to)
            };
            prop_assert_eq!(returned, 0);
            prop_assert!(bytes == expected);
        }
    }

    #[test]
    fn all_bytes_and_no_others_are_set() {
        for len in (0..300).chain(2030..2070) {
            for (offset, value) in [(0, 0), (3, 0x1_5a)] {
                let mut bytes = vec![0xa5_u8; len + 40];
                // SAFETY: within the vector.
                unsafe { memset(bytes.as_mut_ptr().add(8 + offset), value, len) };
                let (set, rest) = (8 + offset..8 + offset + len, bytes.len());
                let right = |at: usize| if set.contains(&at) { value as u8 } else { 0xa5 };
                assert!((0..rest).all(|at| bytes[at] == right(at)), "{len} bytes");
            }
        }
    }
}
