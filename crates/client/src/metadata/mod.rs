//! Operations on names and attributes.

pub(crate) mod attributes;
pub(crate) mod describe;
pub(crate) mod operations;
pub(crate) mod readdir;
pub(crate) mod squash;
pub(crate) mod statfs;
mod xattr;
