//! The session: its registration with the metadata services, what it holds of them (leases, locks,
//! capabilities, slots), and what happens when one of them fails or the cluster ends the session.

pub(crate) mod cancel;
pub(crate) mod capabilities;
pub(crate) mod failover;
pub(crate) mod held_locks;
pub(crate) mod lease_expiry;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod privileges;
pub(crate) mod recall;
pub(crate) mod registration;
pub(crate) mod services;
pub(crate) mod slots;
pub(crate) mod timeout;
pub(crate) mod verifiers;
