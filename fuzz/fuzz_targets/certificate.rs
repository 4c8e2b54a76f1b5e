//! Decodes arbitrary bytes as a peer's certificate.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identity::fuzzing::certificate(bytes));
