//! The checker accepts what an atomic object does, rejects known anomalies, and agrees with trying
//! out all orders.

mod anomalies;
mod atomic_objects;
mod every_order;
mod support;
