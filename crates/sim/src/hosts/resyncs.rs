//! Faults that aim at mirrored groups that are being brought in sync.

use super::faults::MAX_DEAD_MS;
use super::run::Run;
use std::time::Duration;
use types::{ClusterMap, Group, MemberState};

/// How long a host is away, so that it has something to be sent: longer than management counts on
/// it, or not.
const MAX_AWAY_MS: u64 = 20_000;
/// How often it is looked whether one of its members is being brought in sync, and how many times.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: u32 = 1_000;
/// How long a member has been brought in sync when the other one loses its power, at most.
const MAX_INTO_RESYNC_MS: u64 = 60;
/// When management dies after that, when the member that was being brought in sync loses its power,
/// and when hosts are there again.
const MAX_UNTIL_MANAGEMENT_DIES_MS: u64 = 12_000;
const MAX_UNTIL_SECOND_LOSS_MS: u64 = 20_000;
const MAX_UNTIL_BACK_MS: u64 = 25_000;

/// What happens after the only member in sync has lost its power.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    LosePower(usize),
    Start(usize),
    KillManagement,
}

impl Run {
    /// A host comes back and is brought in sync. The host of the only member in sync loses its
    /// power meanwhile; then management dies, and the first host loses its power, in some order and
    /// at some time.
    pub(super) fn strike_resync(&mut self) -> Result<(), String> {
        self.repair();
        let first = self.below(self.storages.len() as u64) as usize;
        self.strike(first);
        self.let_pass_calmly(MAX_AWAY_MS);
        self.tell("started", self.storages[first]);
        self.start_storage(first);
        let Some(last) = self.await_resync(first)? else { return Ok(()) };
        self.let_pass(MAX_INTO_RESYNC_MS);
        self.lose_power(last);
        let second_loss = self.below(MAX_UNTIL_SECOND_LOSS_MS);
        let mut steps = vec![
            (self.below(MAX_UNTIL_BACK_MS), Step::Start(last)),
            (self.below(MAX_UNTIL_MANAGEMENT_DIES_MS), Step::KillManagement),
            (second_loss, Step::LosePower(first)),
            (second_loss + self.below(MAX_DEAD_MS), Step::Start(first)),
        ];
        steps.sort_unstable();
        let mut passed = 0;
        for (at_ms, step) in steps {
            self.pass(Duration::from_millis(at_ms - passed));
            passed = at_ms;
            match step {
                Step::LosePower(index) => self.lose_power(index),
                Step::KillManagement => self.kill_store(),
                Step::Start(index) => {
                    self.tell("started", self.storages[index]);
                    self.start_storage(index);
                }
            }
        }
        Ok(())
    }

    fn lose_power(&mut self, index: usize) {
        self.tell("lost its power", self.storages[index]);
        self.summary.kills += 1;
        self.world.crash(self.storages[index]);
    }

    /// Waits until a member on a host is being brought in sync by the only one that is; the host of
    /// that one.
    fn await_resync(&mut self, host: usize) -> Result<Option<usize>, String> {
        for _ in 0..LOOKS {
            let map = self.map_of_management()?;
            let last = map.groups.iter().find_map(|group| last_in_sync(&map, group, host));
            if last.is_some() {
                return Ok(last);
            }
            self.world.advance(LOOK);
        }
        Ok(None)
    }
}

/// The host of a group's only member in sync, if one on this host is being brought in sync.
fn last_in_sync(map: &ClusterMap, group: &Group, host: usize) -> Option<usize> {
    let members: Vec<_> = group.with_states().map(|(id, state)| (host_of(map, id), state)).collect();
    let is_resynced = members.contains(&(Some(host), MemberState::Resyncing));
    let mut in_sync = members.iter().filter(|(_, state)| *state == MemberState::Good);
    match (in_sync.next(), in_sync.next()) {
        (Some((last, _)), None) if is_resynced && group.scheme.is_mirrored() => *last,
        _ => None,
    }
}

/// The number of the storage host that has a target.
fn host_of(map: &ClusterMap, target: types::TargetId) -> Option<usize> {
    let node = map.node(map.target(target)?.node)?;
    node.name.strip_prefix("storage")?.parse().ok()
}
