//! Any bytes as a file of block sums.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chunkstore::fuzzing::block_sums(bytes));
