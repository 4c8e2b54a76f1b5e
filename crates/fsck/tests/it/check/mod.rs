//! Each kind of fault is found, and repaired where that takes no guess.

mod content;
mod copies;
mod names;
mod support;
