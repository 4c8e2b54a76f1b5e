//! Measurements with real load and with simulated results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench_report_in_a_browser;
mod by_tasks;
mod characterize_small;
mod load;
mod team;
