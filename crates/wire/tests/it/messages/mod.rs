//! Tests of message encoding: round trips, frozen bytes, and refusal of malformed bytes.

mod frozen;
mod mutated;
mod refused;
mod round_trip;
pub mod samples;
mod strategies;
mod walk;
