//! Calls over connections whose ends prove who they are.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod authentication;
mod calls;
mod support;
