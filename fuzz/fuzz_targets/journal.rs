//! Decodes arbitrary bytes as a journal of the metadata store.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::fuzzing::journal(bytes));
