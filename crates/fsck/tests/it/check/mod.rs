//! Each kind of fault is found, and repaired where that is unambiguous.

mod content;
mod copies;
mod names;
mod support;
