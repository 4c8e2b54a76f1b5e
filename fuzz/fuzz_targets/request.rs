//! Decodes arbitrary bytes as a certificate signing request.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identity::fuzzing::request(bytes));
