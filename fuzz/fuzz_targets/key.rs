//! Decodes arbitrary bytes as a key of the metadata store.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| namespace::fuzzing::key(bytes));
