//! Messages as bytes: they come back as they went, their bytes stay what they are, and bytes that
//! nobody vouches for are refused.

mod frozen;
mod mutated;
mod refused;
mod round_trip;
pub mod samples;
mod strategies;
mod walk;
