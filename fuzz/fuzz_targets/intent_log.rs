//! Decodes arbitrary bytes as the intent log of a target.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chunkstore::fuzzing::intent_log(bytes));
