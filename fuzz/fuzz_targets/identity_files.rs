//! Decodes arbitrary bytes as a file of credentials, of capability keys or of token records.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identity::fuzzing::files(bytes));
