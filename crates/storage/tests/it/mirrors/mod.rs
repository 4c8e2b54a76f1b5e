//! Mirrored groups, as their clients and their disks see them.

mod changes;
mod cluster;
mod damage;
mod leftovers;
mod mend;
mod mend_changes;
mod mend_crash;
mod moves;
mod readers;
mod resync;
mod revived;
mod salvage;
mod vanished;
mod verifiers;
mod watches;
