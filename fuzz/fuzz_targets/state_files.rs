//! Decodes arbitrary bytes as the superblock of a cluster, or as its list of targets.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mgmt::fuzzing::state_files(bytes));
