//! Calls over real sockets: what arrives, what is repeated, what is refused.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod calls;
mod support;
