//! The client's handling of requests that fail half-way, arrive late or run concurrently.
//!
//! The services and stores are the real ones, on a simulated machine. Between them and the client
//! sits a [`tap::Tap`], which can refuse or delay requests and counts the answered ones.

mod cluster;
mod copy_file_range;
mod exclusive_access;
mod fsync;
mod missing_chunk_files;
mod mode_bits;
mod new_files;
mod partial_failures;
mod reservations;
mod shutdown;
mod tap;
mod times;
mod uncertain_reports;
