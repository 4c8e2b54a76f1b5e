//! `meta`
