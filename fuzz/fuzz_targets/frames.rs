//! Decodes arbitrary bytes as the stream of a connection.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| net::fuzzing::frames(bytes));
