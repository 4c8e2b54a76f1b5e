//! The chunk store as its users see it: on a real directory, and on a simulated machine that
//! crashes.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod background;
mod common;
mod concurrency;
mod copied_times;
mod crash;
mod damage;
mod first_reads;
mod full;
mod groups;
mod identity;
mod min_length;
mod model;
mod new_files;
mod new_files_crash;
mod recovery;
mod replicas;
mod rewrite;
mod vanished;
mod verifier;
