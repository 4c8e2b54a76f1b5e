//! Decodes arbitrary bytes as a metadata backup.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| backup::fuzzing::copy(bytes));
