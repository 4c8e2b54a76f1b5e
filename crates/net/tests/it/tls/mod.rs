//! Calls over authenticated connections.

mod authentication;
mod authorization;
mod calls;
mod support;
