//! Operations on names and attributes.

mod describe;
pub(crate) mod names;
pub(crate) mod readdir;
mod squash;
pub(crate) mod statfs;
mod xattr;
