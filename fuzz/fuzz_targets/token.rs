//! Decodes arbitrary bytes as a join token.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identity::fuzzing::token(bytes));
