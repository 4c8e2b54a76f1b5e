//! Decodes arbitrary bytes as the extended attribute of an access control list.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| namespace::fuzzing::acl(bytes));
