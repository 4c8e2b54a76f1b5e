//! `layout`
