//! Certificates, tokens and capabilities: who is let in, and who may do what.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod capabilities;
mod clients;
mod common;
mod damaged;
mod files;
mod handshakes;
mod tokens;
