//! Checks every reachable state of a small group.

use model::{Faults, PrimaryChange, Protocol, Safeguards};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

const NONE: Faults = Faults { kills: 0, power_cuts: 0, cuts: 0 };

fn check(size: usize, writes: u8, faults: Faults) {
    check_with(PrimaryChange::Reconciled, size, writes, faults);
}

fn check_with(succession: PrimaryChange, size: usize, writes: u8, faults: Faults) {
    let protocol = Protocol { size, writes, faults, safeguards: Safeguards::ALL, primary_change: succession };
    let checker = protocol.checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{size} members, {succession:?}, {writes} writes, {faults:?}: {states} states");
    checker.assert_properties();
}

/// Returns the number of steps of a random walk after which an invariant is violated. An exhaustive
/// search visits millions of states before it reaches a violation after 26 steps, and random walks
/// find it within a second. If they find none, the search decides.
fn walks_into_violation(protocol: &Protocol) -> Option<usize> {
    const WALKS: usize = 50_000;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    (0..WALKS).find_map(|_| walk(protocol, &mut random))
}

fn walk(protocol: &Protocol, random: &mut Random) -> Option<usize> {
    const STEPS: usize = 30;
    let mut invariants = protocol.properties();
    invariants.retain(|property| property.expectation == Expectation::Always);
    let mut state = protocol.init_states().remove(0);
    for step in 0..STEPS {
        if invariants.iter().any(|invariant| !(invariant.condition)(protocol, &state)) {
            return Some(step);
        }
        let mut actions = Vec::new();
        protocol.actions(&state, &mut actions);
        state = loop {
            if actions.is_empty() {
                return None;
            }
            let action = actions.swap_remove(random.below(actions.len()));
            if let Some(next) = protocol.next_state(&state, action) {
                break next;
            }
        };
    }
    None
}

/// Numbers of an xorshift generator: the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Checks that the protocol fails without one of its safeguards.
fn check_fails(size: usize, faults: Faults, safeguards: Safeguards) {
    fails(Protocol { size, writes: 2, faults, safeguards, primary_change: PrimaryChange::Reconciled });
}

fn fails(protocol: Protocol) {
    let Protocol { size, faults, safeguards, .. } = protocol;
    if let Some(steps) = walks_into_violation(&protocol) {
        return println!("{size} members, {faults:?}, {safeguards:?}: after {steps} steps of a random walk");
    }
    let checker = protocol.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<&str> = checker.discoveries().into_keys().collect();
    let is_violation = |name: &&str| {
        ["no read returns less than it must", "replicas agree when nothing is in flight"].contains(name)
    };
    println!("{size} members, {faults:?}, {safeguards:?}: {found:?}");
    assert!(found.iter().any(is_violation), "not needed: {safeguards:?}");
}

#[test]
fn two_members() {
    check(2, 2, NONE);
    check(2, 2, Faults { kills: 2, ..NONE });
    check(2, 1, Faults { power_cuts: 2, ..NONE });
    check(2, 2, Faults { cuts: 2, ..NONE });
    check(2, 1, Faults { kills: 1, power_cuts: 1, ..NONE });
    check(2, 2, Faults { kills: 1, cuts: 1, ..NONE });
}

#[test]
fn three_members() {
    check(3, 1, Faults { kills: 1, ..NONE });
    check(3, 1, Faults { power_cuts: 1, ..NONE });
    check(3, 1, Faults { cuts: 1, ..NONE });
}

/// As implemented. Of two members, no other one is left.
#[test]
fn three_members_with_ejection_by_a_new_primary() {
    check_with(PrimaryChange::OthersEjected, 3, 1, Faults { kills: 1, ..NONE });
    check_with(PrimaryChange::OthersEjected, 3, 1, Faults { power_cuts: 1, ..NONE });
    check_with(PrimaryChange::OthersEjected, 3, 1, Faults { cuts: 1, ..NONE });
}

#[test]
fn every_safeguard_is_needed() {
    let all = Safeguards::ALL;
    check_fails(2, Faults { kills: 2, ..NONE }, Safeguards { intent_notes: false, ..all });
    check_fails(2, Faults { cuts: 2, ..NONE }, Safeguards { leases: false, ..all });
    check_fails(3, NONE, Safeguards { uncommitted_writes: false, ..all });
    check_fails(3, Faults { kills: 1, ..NONE }, Safeguards { reconciliation: false, ..all });
    check_fails(2, Faults { power_cuts: 1, cuts: 1, ..NONE }, Safeguards { versions: false, ..all });
    let (faults, safeguards) = (Faults { kills: 1, ..NONE }, Safeguards { ejection_known: false, ..all });
    fails(Protocol { size: 3, writes: 1, faults, safeguards, primary_change: PrimaryChange::OthersEjected });
}
