//! Tests of the encoding of frames and messages.

mod authorization;
mod frame;
mod messages;
mod operations;
