//! Mirrored groups, as their clients and their disks see them.

mod changes;
mod cluster;
mod crash_reconciliation;
mod damage;
mod directed_repair;
mod dirty_tracking;
mod forced_recovery;
mod member_replacement;
mod readers;
mod repair_crash;
mod repair_group_changes;
mod resync;
mod salvage;
mod vanished;
mod verifiers;
