//! Decodes arbitrary bytes as the superblock of a target or of a group's store.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chunkstore::fuzzing::superblock(bytes));
