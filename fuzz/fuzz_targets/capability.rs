//! Decodes arbitrary bytes as a capability of a storage request.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identity::fuzzing::capability(bytes));
