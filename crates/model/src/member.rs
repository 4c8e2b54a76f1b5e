//! The behaviour of a member.

use crate::state::{MAX_MEMBERS, Member, Message, Operation, Record, Safeguards, State};

impl Member {
    pub(crate) fn new(view: Record) -> Member {
        Member {
            alive: true,
            registered: true,
            has_lease: true,
            view,
            value: 0,
            on_disk: 0,
            has_intent_note: false,
            has_uncommitted_write: false,
            is_reconciled: true,
            operation: None,
            intact: true,
            lost_power: false,
        }
    }

    /// Ends the process, which loses its volatile state.
    pub(crate) fn die(&mut self) {
        self.alive = false;
        self.registered = false;
        self.has_lease = false;
        self.has_uncommitted_write = false;
        self.is_reconciled = false;
        self.operation = None;
        self.intact = false;
    }

    pub(crate) fn lose_power(&mut self) {
        self.die();
        self.lost_power = true;
        self.value = self.on_disk;
    }

    fn set_intent_note(&mut self, safeguards: &Safeguards) {
        self.has_intent_note |= safeguards.intent_notes;
    }
}

impl State {
    /// Gives a member the current record.
    pub(crate) fn update_view(&mut self, me: usize, record: Record, safeguards: &Safeguards, size: usize) {
        let member = &mut self.members[me];
        if member.view == record {
            return;
        }
        let was_primary = member.view.primary == me;
        member.view = record;
        if record.primary != me {
            member.operation = None;
            member.is_reconciled = false;
            return;
        }
        if !was_primary || !member.is_reconciled {
            // A change that an earlier primary has begun may be on some members only. The intent
            // notes show where.
            member.is_reconciled = !(safeguards.reconciliation && member.has_intent_note);
        }
        let (operation, value, is_ready) = (member.operation, member.value, member.is_reconciled);
        match operation {
            // Replicated again, to all members of the new version.
            Some(operation) => self.begin(me, operation.value, operation.is_write, safeguards, size),
            None if !is_ready => self.begin(me, value, false, safeguards, size),
            None => {}
        }
    }

    /// Begins to replicate a value from the primary to all members that get writes.
    pub(crate) fn begin(
        &mut self,
        me: usize,
        value: u8,
        is_write: bool,
        safeguards: &Safeguards,
        size: usize,
    ) {
        let member = &mut self.members[me];
        member.set_intent_note(safeguards);
        member.has_uncommitted_write = true;
        member.operation = Some(Operation {
            value,
            is_write,
            applied: member.value == value,
            acknowledged_by: [false; MAX_MEMBERS],
        });
        let (view, version) = (member.view, member.view.version);
        for to in (0..size).filter(|&to| to != me && view.receives_writes(to)) {
            self.send(Message::Replicate { to, version, value });
        }
    }

    pub(crate) fn send(&mut self, message: Message) {
        if self.members[message.to()].alive {
            self.messages.insert(message);
        }
    }

    /// Removes what makes no difference any more, to reduce the number of states.
    pub(crate) fn normalized(mut self, safeguards: &Safeguards) -> State {
        if self.faults.power_cuts == 0 && !self.members.iter().any(|member| member.lost_power) {
            self.members.iter_mut().for_each(|member| member.on_disk = member.value);
            self.synced = self.acknowledged;
        }
        if safeguards.versions {
            let members = &self.members;
            self.messages.retain(|message| {
                let member = &members[message.to()];
                let is_late = message.version() < member.view.version;
                let has_no_effect = match *message {
                    Message::Committed { version, value, .. } => {
                        version == member.view.version
                            && (member.value != value || !member.has_uncommitted_write)
                    }
                    _ => false,
                };
                !(is_late || has_no_effect)
            });
        }
        self
    }

    /// Delivers a message to a member; `None` if the message must wait.
    pub(crate) fn receive(&self, message: Message, safeguards: &Safeguards, size: usize) -> Option<State> {
        let mut next = self.clone();
        next.messages.remove(&message);
        let me = message.to();
        let member = self.members[me];
        let (version, own_version) = (message.version(), member.view.version);
        if safeguards.versions && version != own_version {
            // The member learns of a later version from management first.
            return (version < own_version).then_some(next);
        }
        match message {
            Message::Write { value, .. } => {
                if member.view.primary != me || !member.has_lease {
                    return Some(next);
                }
                if !member.is_reconciled || member.operation.is_some() {
                    return None;
                }
                // An old copy of a write is detected by its number.
                if value >= member.value {
                    next.begin(me, value, true, safeguards, size);
                }
            }
            Message::Replicate { value, .. } => {
                if !member.view.receives_writes(me) || member.view.primary == me {
                    return Some(next);
                }
                let from = member.view.primary;
                let member = &mut next.members[me];
                member.set_intent_note(safeguards);
                member.value = member.value.max(value);
                member.has_uncommitted_write = true;
                next.send(Message::Ack { from: me, to: from, version, value });
            }
            Message::Ack { from, value, .. } => {
                if let Some(operation) = &mut next.members[me].operation
                    && operation.value == value
                {
                    operation.acknowledged_by[from] = true;
                }
            }
            Message::Committed { value, .. } => {
                let member = &mut next.members[me];
                if member.value == value {
                    member.has_uncommitted_write = false;
                }
            }
        }
        Some(next)
    }

    /// Ends the primary's operation once all members have it.
    pub(crate) fn finish(&self, me: usize, size: usize) -> Option<State> {
        let member = self.members[me];
        let operation = member.operation?;
        let (view, version, value) = (member.view, member.view.version, operation.value);
        let mut others = (0..size).filter(|&other| other != me && view.receives_writes(other));
        if !operation.applied || !member.has_lease || !others.all(|other| operation.acknowledged_by[other]) {
            return None;
        }
        let mut next = self.clone();
        let member = &mut next.members[me];
        (member.operation, member.has_uncommitted_write, member.is_reconciled) = (None, false, true);
        for to in (0..size).filter(|&to| to != me && view.receives_writes(to)) {
            next.send(Message::Committed { to, version, value });
        }
        if operation.is_write {
            // A client that doesn't get the answer sends the write again, which changes nothing.
            next.acknowledged = next.acknowledged.max(value);
            next.floor = next.floor.max(value);
        }
        Some(next)
    }
}
