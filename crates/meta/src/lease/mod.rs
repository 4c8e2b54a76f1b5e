//! Leases: the table, what a command recalls and grants, and name-prefix delegations.

pub(crate) mod coherence;
pub(crate) mod name_delegations;
pub(crate) mod recalls;
pub(crate) mod table;
