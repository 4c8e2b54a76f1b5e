//! Any bytes to every decoder of messages and frames.

#![no_main]

#[path = "../../crates/wire/tests/messages/feed.rs"]
mod feed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feed::feed(bytes));
