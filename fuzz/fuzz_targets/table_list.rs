//! Decodes arbitrary bytes as the metadata store's list of tables.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::fuzzing::table_list(bytes));
