//! `fuse`
