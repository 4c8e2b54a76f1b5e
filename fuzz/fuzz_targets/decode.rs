//! Any bytes to every decoder of messages and headers of frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::fuzzing::messages(bytes));
