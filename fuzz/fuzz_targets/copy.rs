//! Any bytes as a copy of the metadata.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| backup::fuzzing::copy(bytes));
