//! Decodes arbitrary bytes as a target's file of rows.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chunkstore::fuzzing::rows(bytes));
