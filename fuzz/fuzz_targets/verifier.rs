//! Decodes arbitrary bytes as the verifier record of a target or of the metadata store.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    chunkstore::fuzzing::verifier(bytes);
    kv::fuzzing::verifier(bytes);
});
