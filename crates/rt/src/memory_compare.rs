//! `memcmp` and `bcmp` of programs that are linked with musl. Those of musl compare byte by byte,
//! 4 KiB in 3 us; comparisons of names, keys and blocks are among the most frequent operations of
//! the services. This module's functions replace them, since the linker takes a function from the C
//! library only if the program has none.

use std::ffi::c_int;

/// Keeps the function in the program: only code that the compiler generates later calls it.
#[cfg(target_env = "musl")]
#[used]
static KEPT: [unsafe extern "C" fn(*const u8, *const u8, usize) -> c_int; 2] = [memcmp, bcmp];

/// Compares as the C library's function does.
///
/// # Safety
/// `len` bytes can be read at both addresses.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
    // SAFETY: the caller vouches for the memory.
    unsafe { compare(a, b, len) }
}

/// Returns 0 for equal bytes.
///
/// # Safety
/// As for [`memcmp`].
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
    // SAFETY: the caller vouches for the memory.
    unsafe { compare(a, b, len) }
}

const WORD: usize = size_of::<u64>();

/// # Safety
/// As for [`memcmp`].
#[inline(always)]
unsafe fn compare(a: *const u8, b: *const u8, len: usize) -> c_int {
    // SAFETY: the loops below read words and bytes within `len`.
    let word = |at: usize| unsafe {
        let (x, y) = (a.add(at).cast::<u64>(), b.add(at).cast::<u64>());
        (x.read_unaligned(), y.read_unaligned())
    };
    let mut at = 0;
    while at + WORD <= len {
        let (x, y) = word(at);
        if x != y {
            return order(x, y);
        }
        at += WORD;
    }
    if at < len && len >= WORD {
        // The last word, whose first bytes are known to be equal.
        let (x, y) = word(len - WORD);
        return if x == y { 0 } else { order(x, y) };
    }
    while at < len {
        // SAFETY: within `len`.
        let (x, y) = unsafe { (*a.add(at), *b.add(at)) };
        if x != y {
            return c_int::from(x) - c_int::from(y);
        }
        at += 1;
    }
    0
}

/// The order of two words as sequences of bytes.
fn order(x: u64, y: u64) -> c_int {
    if u64::from_be(x) < u64::from_be(y) { -1 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Ordering;

    /// Compares byte by byte, without a call of `memcmp`.
    fn naive(a: &[u8], b: &[u8]) -> Ordering {
        a.iter().zip(b).map(|(x, y)| x.cmp(y)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    fn check(a: &[u8], b: &[u8]) {
        assert_eq!(a.len(), b.len());
        // SAFETY: both have that length.
        let results =
            unsafe { [memcmp(a.as_ptr(), b.as_ptr(), a.len()), bcmp(a.as_ptr(), b.as_ptr(), a.len())] };
        assert_eq!(results[0].cmp(&0), naive(a, b), "{a:?} {b:?}");
        assert_eq!(results[1] == 0, naive(a, b).is_eq());
    }

    proptest! {
        #[test]
        fn any_bytes_compare_as_byte_by_byte(
            mut a in proptest::collection::vec(any::<u8>(), 0..70),
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..3),
            offset in 0..9_usize,
        ) {
            let mut b = a.clone();
            let len = a.len();
            for (at, byte) in changes {
                if len > 0 {
                    b[at % len] = byte;
                }
            }
            let offset = offset.min(len);
            check(&a[offset..], &b[offset..]);
            a.reverse();
            b.reverse();
            check(&a, &b);
        }
    }

    #[test]
    fn every_position_of_a_difference_counts() {
        for len in 1..40 {
            for at in 0..len {
                let (mut a, mut b) = (vec![200; len], vec![200; len]);
                b[at] = 100;
                check(&a, &b);
                check(&b, &a);
                a[at] = 100;
                check(&a, &b);
            }
        }
        check(&[], &[]);
    }
}
