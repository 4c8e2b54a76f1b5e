//! Any bytes as the records of what has to be there when the metadata store is opened.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::fuzzing::required(bytes));
