//! Conversion between structs and bytes.

/// A `repr(C)` struct of integers without padding bytes.
///
/// # Safety
/// Every bit pattern is a valid value, and the struct has no padding (the fields' sizes add up to
/// its size).
pub unsafe trait Pod: Copy + 'static {}

/// Returns the struct at the start of `bytes`; `None` if there are too few.
pub fn read<T: Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked, any bytes are a valid `T`, and an unaligned read needs no
    // alignment.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast::<T>()) })
}

/// Returns the bytes of a struct.
pub fn bytes_of<T: Pod>(value: &T) -> &[u8] {
    // SAFETY: a `Pod` has no padding, so all of its `size_of` bytes are initialised; they live as
    // long as `value`.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Declares structs of the protocol and checks at compile time that they have the given size and no
/// padding.
macro_rules! pods {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[allow(missing_docs)]
            pub struct $name { $(pub $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $size);
            const _: () = assert!(0 $(+ size_of::<$type>())* == $size);
            // SAFETY: all fields are integers, arrays of them, or such structs; the sum of sizes
            // was checked above.
            #[allow(unsafe_code)]
            unsafe impl $crate::abi::Pod for $name {}
        )*
    };
}
pub(super) use pods;
