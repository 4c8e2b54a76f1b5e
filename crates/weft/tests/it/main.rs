//! The integration tests of the command, in one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod command_line;
mod doctor;
mod fixtures;
mod idle_sessions;
mod numa;
mod private_files;
mod service_manager;
