//! Any bytes as a request for a certificate.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identity::fuzzing::request(bytes));
