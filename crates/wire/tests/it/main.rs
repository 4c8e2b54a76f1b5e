//! Frames and messages as bytes.

mod authorization;
mod frame;
mod messages;
