//! What the client makes of requests that fail half-way, come late or come side by side.
//!
//! The services and stores are the real ones, on a simulated machine; between them and the client
//! sits a [`tap::Tap`] that can refuse or delay requests and counts what was answered.

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
