//! `mgmt`
