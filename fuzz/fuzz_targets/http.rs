//! Decodes arbitrary bytes as a request to the HTTP interface. The interface is part of a binary
//! crate, so this target includes its source files individually.

#![no_main]

#[allow(dead_code)]
#[path = "../../crates/weft/src/api/http.rs"]
mod http;
#[path = "../../crates/weft/src/api/http_fuzzing.rs"]
mod http_fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| http_fuzzing::request(bytes));
