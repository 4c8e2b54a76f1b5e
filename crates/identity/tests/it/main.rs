//! Certificates, tokens and capabilities: authentication and authorization.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod capabilities;
mod clients;
mod common;
mod damaged;
mod files;
mod handshakes;
mod tokens;
