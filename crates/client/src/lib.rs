//! The client core: a mounted file system's semantics without its kernel protocol.

mod api_stub;
pub use api_stub::*;
