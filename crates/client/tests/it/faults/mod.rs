//! The client's handling of requests that fail half-way, arrive late or run concurrently.
//!
//! The services and stores are the real ones, on a simulated machine. Between them and the client
//! sits a [`tap::Tap`], which can refuse or delay requests and counts the answered ones.

mod aside;
mod cluster;
mod copies;
mod cuts;
mod fsync;
mod gone;
mod mode_bits;
mod new_files;
mod reports;
mod reserved;
mod shutdown;
mod tap;
mod times;
