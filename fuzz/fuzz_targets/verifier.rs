//! Any bytes as the record of a target's or of the metadata store's verifier.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    chunkstore::fuzzing::verifier(bytes);
    kv::fuzzing::verifier(bytes);
});
