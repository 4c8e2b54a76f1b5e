//! Decodes arbitrary bytes as a file of block checksums.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chunkstore::fuzzing::block_sums(bytes));
