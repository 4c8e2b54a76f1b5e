//! The checker accepts histories of atomic objects, rejects known anomalies, and agrees with trying
//! all orders.

mod anomalies;
mod atomic_objects;
mod every_order;
mod notation;
