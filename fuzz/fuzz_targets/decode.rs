//! Passes arbitrary bytes to every decoder of messages and frame headers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::fuzzing::messages(bytes));
