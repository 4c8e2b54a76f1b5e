//! Decodes arbitrary bytes as the records of the files required when the metadata store is opened.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::fuzzing::required(bytes));
