//! Faults that target mirrored groups during a resync.

use super::faults::MAX_DOWN_MS;
use super::process::Service;
use super::run::Run;
use std::time::Duration;
use types::{ClusterMap, Group, MemberState};

/// Longest time that a host is down, so that it needs a resync. It may exceed the time after which
/// management counts the host as offline.
const MAX_HOST_DOWN_MS: u64 = 20_000;
/// Interval and number of checks for a member of the host in state resyncing.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_CHECKS: u32 = 1_000;
/// Longest time from the detection of the resync to the power failure of the in-sync member.
const MAX_UNTIL_POWER_LOSS_MS: u64 = 60;
/// Latest times after that power failure: the crash of management, the power failure of the
/// resyncing member, and the restart of hosts.
const MAX_UNTIL_MANAGEMENT_CRASH_MS: u64 = 12_000;
const MAX_UNTIL_SECOND_LOSS_MS: u64 = 20_000;
const MAX_UNTIL_RESTART_MS: u64 = 25_000;

/// A fault or repair after the only in-sync member has lost power.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FollowUp {
    LosePower(usize),
    Start(usize),
    KillManagement,
}

impl Run {
    /// Restarts a host, so that a resync of it begins. During the resync, the host of the only
    /// in-sync member loses power. Then management crashes and the first host loses power, in a
    /// random order and at random times.
    pub(super) fn inject_resync_faults(&mut self) -> Result<(), String> {
        self.repair();
        let first = self.below(self.storages.len() as u64) as usize;
        self.crash_storage(first);
        self.advance_up_to_with_pauses(MAX_HOST_DOWN_MS);
        self.log_fault("started", self.storages[first]);
        self.start_storage(first);
        let Some(last) = self.await_resync(first)? else { return Ok(()) };
        self.advance_up_to(MAX_UNTIL_POWER_LOSS_MS);
        self.lose_power(last);
        let second_loss = self.below(MAX_UNTIL_SECOND_LOSS_MS);
        let mut steps = vec![
            (self.below(MAX_UNTIL_RESTART_MS), FollowUp::Start(last)),
            (self.below(MAX_UNTIL_MANAGEMENT_CRASH_MS), FollowUp::KillManagement),
            (second_loss, FollowUp::LosePower(first)),
            (second_loss + self.below(MAX_DOWN_MS), FollowUp::Start(first)),
        ];
        steps.sort_unstable();
        let mut elapsed_ms = 0;
        for (at_ms, step) in steps {
            self.advance_with_pauses(Duration::from_millis(at_ms - elapsed_ms));
            elapsed_ms = at_ms;
            match step {
                FollowUp::LosePower(index) => self.lose_power(index),
                FollowUp::KillManagement => self.kill_store(),
                FollowUp::Start(index) => {
                    self.log_fault("started", self.storages[index]);
                    self.start_storage(index);
                }
            }
        }
        Ok(())
    }

    fn lose_power(&mut self, index: usize) {
        self.log_fault("lost power", self.storages[index]);
        self.summary.kills += 1;
        self.world.crash(self.storages[index]);
        self.cluster.cancel_restart(Service::Storage(index));
    }

    /// Waits until a member on a host is being resynced from the only in-sync member. Returns the
    /// host of the latter.
    fn await_resync(&mut self, host: usize) -> Result<Option<usize>, String> {
        for _ in 0..MAX_CHECKS {
            let map = self.management_map()?;
            let last = map.groups.iter().find_map(|group| last_in_sync(&map, group, host));
            if last.is_some() {
                return Ok(last);
            }
            self.advance(CHECK_INTERVAL);
        }
        Ok(None)
    }
}

/// Returns the host of a group's only in-sync member, if a member on `host` is being resynced.
fn last_in_sync(map: &ClusterMap, group: &Group, host: usize) -> Option<usize> {
    let members: Vec<_> = group.members_with_states().map(|(id, state)| (host_of(map, id), state)).collect();
    let is_resynced = members.contains(&(Some(host), MemberState::Resyncing));
    let mut in_sync = members.iter().filter(|(_, state)| *state == MemberState::InSync);
    match (in_sync.next(), in_sync.next()) {
        (Some((last, _)), None) if is_resynced && group.scheme.has_primary() => *last,
        _ => None,
    }
}

/// Returns the number of the storage host that has a target.
fn host_of(map: &ClusterMap, target: types::TargetId) -> Option<usize> {
    let node = map.node(map.target(target)?.node)?;
    node.name.strip_prefix("storage")?.parse().ok()
}
