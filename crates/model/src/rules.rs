//! The possible steps, and the invariants.

use crate::state::{
    Consistency, Faults, MAX_MEMBERS, Member, Message, PrimaryChange, Record, Safeguards, State,
};
use stateright::{Model, Property};
use std::collections::BTreeSet;

/// A group, and the faults that it may encounter.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Number of members, 2 or 3.
    pub size: usize,
    /// Number of values that the client writes.
    pub writes: u8,
    /// Maximum number of faults.
    pub faults: Faults,
    /// The safeguards in force.
    pub safeguards: Safeguards,
    /// What happens to the other members when the primary is replaced.
    pub primary_change: PrimaryChange,
}

/// A step. Numbers are members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Action {
    /// The client sends its write, for the first time or again, to the primary of the current
    /// version.
    SendWrite,
    Deliver(Message),
    /// The primary executes its own part of its operation.
    Apply(usize),
    Finish(usize),
    Read(usize),
    /// A sync that covers everything acknowledged succeeds, and the client is informed.
    Sync,
    /// A member writes its content to disk.
    WriteBack(usize),
    /// A member deletes the note that a region may differ.
    ClearNote(usize),
    /// The member gets management's record, and a serving lease.
    Renew(usize),
    /// Management ejects a member.
    Eject(usize),
    Register(usize),
    StartResync(usize),
    EndResync(usize),
    Start(usize),
    Kill(usize),
    CutPower(usize),
    EndLease(usize),
}

impl Protocol {
    fn with_record(&self, state: &State, change: impl FnOnce(&mut Record)) -> State {
        let mut next = state.clone();
        change(&mut next.record);
        next.record.version += 1;
        if !next.record.is_in_sync(next.record.primary) {
            let in_sync = (0..self.size).find(|&member| next.record.is_in_sync(member));
            let primary = in_sync.expect("the last good member stays good");
            next.record.primary = primary;
            if self.primary_change == PrimaryChange::OthersEjected {
                for other in (0..self.size).filter(|&other| other != primary) {
                    next.record.states[other] = Consistency::NeedsResync;
                }
            }
        }
        next
    }

    /// Whether all members that a member's view excludes know so, or can't serve: management's
    /// answer when it is asked. Members that are resynced before the primary serves needn't know.
    fn is_ejection_known(&self, state: &State, me: usize) -> bool {
        let view = &state.members[me].view;
        let may_serve_old_view = |other: &usize| {
            let other = &state.members[*other];
            other.alive && other.has_lease && other.view.version < view.version
        };
        let must_wait = self.safeguards.ejection_known && self.primary_change == PrimaryChange::OthersEjected;
        !must_wait
            || !(0..self.size)
                .any(|other| other != me && !view.receives_writes(other) && may_serve_old_view(&other))
    }

    fn is_last_in_sync(&self, state: &State, me: usize) -> bool {
        !(0..self.size).any(|other| other != me && state.record.is_in_sync(other))
    }

    /// Whether a member reads and writes under the current record.
    fn is_current(state: &State, me: usize) -> bool {
        let member = &state.members[me];
        member.alive && member.has_lease && member.view == state.record
    }

    fn read(&self, state: &State, me: usize) -> Option<State> {
        let member = &state.members[me];
        let is_primary = member.view.primary == me;
        let may_read = match is_primary {
            true => member.is_reconciled && member.operation.is_none() && self.is_ejection_known(state, me),
            false => !(member.has_uncommitted_write && self.safeguards.uncommitted_writes),
        };
        if !(member.alive && member.has_lease && member.view.is_in_sync(me) && may_read) {
            return None;
        }
        let mut next = state.clone();
        next.has_stale_read |= member.value < state.floor || member.value > state.started;
        next.floor = state.floor.max(member.value);
        Some(next)
    }

    /// Ejects a member that may have missed a change. No other member is informed, and the ejected
    /// one only if it is alive.
    fn eject(&self, state: &State, me: usize) -> Option<State> {
        let member = &state.members[me];
        // A member that is in sync must be reachable: if all are unreachable, management can't tell
        // which one has less.
        let is_reachable_peer =
            |other: usize| state.record.is_in_sync(other) && state.members[other].has_lease;
        let mut others = (0..self.size).filter(|&other| other != me);
        if state.record.states[me] == Consistency::NeedsResync || !others.any(is_reachable_peer) {
            return None;
        }
        let is_reachable = member.alive && member.has_lease;
        if is_reachable && state.faults.cuts == 0 {
            return None;
        }
        let mut next = self.with_record(state, |record| record.states[me] = Consistency::NeedsResync);
        if is_reachable {
            next.faults.cuts -= 1;
            if self.safeguards.leases {
                // It is asked first, and confirms that it knows.
                let record = next.record;
                next.update_view(me, record, &self.safeguards, self.size);
            }
        }
        Some(next)
    }

    fn register(&self, state: &State, me: usize) -> State {
        let needs_resync = state.record.is_in_sync(me) && !self.is_last_in_sync(state, me)
            || state.record.states[me] == Consistency::Resyncing;
        // A new version even if nothing else changes: messages to its earlier process are void.
        let mut next = self.with_record(state, |record| {
            if needs_resync {
                record.states[me] = Consistency::NeedsResync;
            }
        });
        let record = next.record;
        let member = &mut next.members[me];
        (member.registered, member.has_lease) = (true, true);
        // Its earlier knowledge of the group is void.
        member.view = Record { version: 0, primary: MAX_MEMBERS, ..record };
        next.update_view(me, record, &self.safeguards, self.size);
        next
    }

    fn end_resync(&self, state: &State, me: usize) -> Option<State> {
        let primary = state.record.primary;
        let source = &state.members[primary];
        let is_idle =
            source.is_reconciled && source.operation.is_none() && Protocol::is_current(state, primary);
        if state.record.states[me] != Consistency::Resyncing || !is_idle || !Protocol::is_current(state, me) {
            return None;
        }
        let mut next = state.clone();
        if source.has_intent_note || state.members[me].has_intent_note {
            // The region is copied while no write is in progress there.
            let (value, target) = (source.value, &mut next.members[me]);
            (target.value, target.has_intent_note, target.has_uncommitted_write) =
                (value, self.safeguards.intent_notes, false);
        }
        let mut next = self.with_record(&next, |record| record.states[me] = Consistency::InSync);
        (next.members[me].intact, next.members[me].lost_power) = (true, false);
        Some(next)
    }

    fn crash(&self, state: &State, me: usize, power: bool) -> Option<State> {
        let faults = &state.faults;
        let left = if power { faults.power_cuts } else { faults.kills };
        if left == 0 || !state.members[me].alive {
            return None;
        }
        let mut next = state.clone();
        next.messages.retain(|message| message.to() != me);
        if power {
            next.faults.power_cuts -= 1;
            next.members[me].lose_power();
        } else {
            next.faults.kills -= 1;
            next.members[me].die();
        }
        // Unsynced data may be lost when all members have crashed, and one of them by power loss.
        let mut in_sync = (0..self.size).filter(|&member| state.record.is_in_sync(member));
        if in_sync.clone().any(|member| next.members[member].lost_power)
            && in_sync.all(|member| !next.members[member].intact)
        {
            next.floor = next.floor.min(next.synced);
            next.acknowledged = next.acknowledged.min(next.synced);
        }
        Some(next)
    }

    fn sync(&self, state: &State) -> Option<State> {
        let primary = state.record.primary;
        let is_idle = |member: &Member| {
            member.is_reconciled && member.operation.is_none() && member.value == state.acknowledged
        };
        let is_on_disk = |me: usize| {
            let member = &state.members[me];
            Protocol::is_current(state, me) && member.on_disk == member.value
        };
        let mut in_sync = (0..self.size).filter(|&me| state.record.is_in_sync(me));
        let succeeds =
            state.synced < state.acknowledged && is_idle(&state.members[primary]) && in_sync.all(is_on_disk);
        succeeds.then(|| State { synced: state.acknowledged, ..state.clone() })
    }

    fn clear_note(&self, state: &State, me: usize) -> Option<State> {
        let member = &state.members[me];
        let all_in_sync = (0..self.size).all(|other| member.view.is_in_sync(other));
        let is_safe =
            !member.has_uncommitted_write && member.operation.is_none() && member.value == member.on_disk;
        if !(member.alive && member.has_lease && member.has_intent_note && all_in_sync && is_safe) {
            return None;
        }
        let mut next = state.clone();
        next.members[me].has_intent_note = false;
        Some(next)
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::SendWrite => {
                let is_waiting = state.started > state.acknowledged;
                if !is_waiting && state.started == self.writes {
                    return None;
                }
                let mut next = state.clone();
                next.started = if is_waiting { state.started } else { state.started + 1 };
                let Record { version, primary: to, .. } = state.record;
                next.send(Message::Write { to, version, value: next.started });
                (next != *state).then_some(next)
            }
            Action::Deliver(message) => state.receive(message, &self.safeguards, self.size),
            Action::Finish(me) if !self.is_ejection_known(state, me) => None,
            Action::Finish(me) => state.finish(me, self.size),
            Action::Read(me) => self.read(state, me).filter(|next| next != state),
            Action::Sync => self.sync(state),
            Action::ClearNote(me) => self.clear_note(state, me),
            Action::Eject(me) => self.eject(state, me),
            Action::Register(me) => {
                let member = &state.members[me];
                (member.alive && !member.registered).then(|| self.register(state, me))
            }
            Action::StartResync(me) => {
                let is_ready = state.members[me].registered && state.members[me].has_lease;
                let needs_resync = state.record.states[me] == Consistency::NeedsResync;
                (needs_resync && is_ready)
                    .then(|| self.with_record(state, |record| record.states[me] = Consistency::Resyncing))
            }
            Action::EndResync(me) => self.end_resync(state, me),
            Action::Kill(me) => self.crash(state, me, false),
            Action::CutPower(me) => self.crash(state, me, true),
            _ => self.member_step(state, action),
        }
    }

    fn member_step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Apply(me) => {
                let member = &mut next.members[me];
                let operation = member.operation.as_mut().filter(|operation| !operation.applied)?;
                operation.applied = true;
                member.value = member.value.max(operation.value);
            }
            Action::WriteBack(me) => {
                let member = &mut next.members[me];
                if !member.alive || member.on_disk == member.value {
                    return None;
                }
                member.on_disk = member.value;
            }
            Action::Renew(me) => {
                let member = &mut next.members[me];
                if !member.registered || (member.has_lease && member.view == state.record) {
                    return None;
                }
                member.has_lease = true;
                next.update_view(me, state.record, &self.safeguards, self.size);
            }
            Action::Start(me) => {
                let member = &mut next.members[me];
                if member.alive {
                    return None;
                }
                member.alive = true;
            }
            Action::EndLease(me) => {
                let member = &mut next.members[me];
                if !member.has_lease || state.faults.cuts == 0 {
                    return None;
                }
                member.has_lease = false;
                next.faults.cuts -= 1;
            }
            _ => return None,
        }
        Some(next)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let record = Record { version: 1, primary: 0, states: [Consistency::InSync; MAX_MEMBERS] };
        vec![State {
            record,
            members: [Member::new(record); MAX_MEMBERS],
            messages: BTreeSet::new(),
            started: 0,
            acknowledged: 0,
            synced: 0,
            floor: 0,
            has_stale_read: false,
            faults: self.faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::SendWrite, Action::Sync]);
        actions.extend(state.messages.iter().map(|message| Action::Deliver(*message)));
        for me in 0..self.size {
            actions.extend([
                Action::Apply(me),
                Action::Finish(me),
                Action::Read(me),
                Action::WriteBack(me),
                Action::ClearNote(me),
                Action::Renew(me),
                Action::Eject(me),
                Action::Register(me),
                Action::StartResync(me),
                Action::EndResync(me),
                Action::Start(me),
                Action::Kill(me),
                Action::CutPower(me),
                Action::EndLease(me),
            ]);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.step(state, action).map(|next| next.normalized(&self.safeguards))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no read returns less than it must", |_, state: &State| !state.has_stale_read),
            Property::always(
                "replicas agree when nothing is in flight",
                |protocol: &Protocol, state: &State| {
                    let is_quiescent = state.messages.is_empty()
                        && (0..protocol.size).all(|me| {
                            let member = &state.members[me];
                            state.record.is_in_sync(me)
                                && Protocol::is_current(state, me)
                                && member.operation.is_none()
                                && !member.has_uncommitted_write
                                && (member.is_reconciled || state.record.primary != me)
                        });
                    !is_quiescent
                        || (1..protocol.size).all(|me| state.members[me].value == state.members[0].value)
                },
            ),
            Property::sometimes(
                "all writes succeed and all members are in sync after all faults",
                |protocol: &Protocol, state: &State| {
                    let Faults { kills, power_cuts, cuts } = state.faults;
                    state.acknowledged == protocol.writes
                        && kills + power_cuts + cuts == 0
                        && (0..protocol.size).all(|me| state.record.is_in_sync(me) && state.members[me].alive)
                },
            ),
        ]
    }
}
