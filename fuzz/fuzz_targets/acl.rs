//! Any bytes as the value of an access control list's attribute.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| namespace::fuzzing::acl(bytes));
