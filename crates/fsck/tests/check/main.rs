//! Each kind of fault is found, and repaired where that takes no guess.

#![allow(clippy::unwrap_used, reason = "test support")]

mod content;
mod copies;
mod names;
mod support;
