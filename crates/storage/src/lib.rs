//! `storage`
