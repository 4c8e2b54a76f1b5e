//! The whole cluster on a simulated machine, against a naive model.
pub mod model;
