//! Frames and messages as bytes.

mod frame;
mod messages;
