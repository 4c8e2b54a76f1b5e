//! The tables of operations: each operation with what its entry says, written as a page.

use super::messages::samples::{meta_ops, storage_ops};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use types::InodeId;
use wire::spec::{
    Effect, EntryChange, EntryNames, LeaseConflict, MetaEffect, Payload, ReadSource, Right, Scope, Stage,
};
use wire::{LeaseMode, MetaOp, StorageOp};

fn effect_of(effect: Effect) -> &'static str {
    match effect {
        Effect::Read(ReadSource::AnyReplica) => "reads, from any replica in sync",
        Effect::Read(ReadSource::AllReplicas) => "reads, from all replicas",
        Effect::Read(ReadSource::OneReplica) => "reads, from one replica",
        Effect::Change => "changes the chunk file",
        Effect::Sync => "makes changes durable",
        Effect::Control => "controls",
    }
}

fn storage_row(op: &StorageOp) -> String {
    let spec = op.spec();
    let right = match spec.right {
        Some(Right::Read) => "read",
        Some(Right::Write) => "write",
        None => "",
    };
    let payload = match spec.payload {
        Payload::Optional => "",
        Payload::Returned => "returned",
        Payload::Sent => "sent",
    };
    let range = |range: Option<types::ByteRange>| match range {
        None => "",
        Some(range) if range.start == 0 && range.end == u64::MAX => "all",
        Some(_) => "a range",
    };
    let scope = match spec.scope {
        Scope::AnyGroup => "any",
        Scope::GroupWithMembers => "mirrored",
    };
    let locked = range(op.exclusive_range(4096));
    let changed = range(op.changed_content(4096));
    let effect = effect_of(spec.effect);
    format!("| `{}` | {effect} | {right} | {payload} | {changed} | {locked} | {scope} |", spec.name)
}

fn meta_row(op: &MetaOp) -> String {
    let spec = op.spec();
    let effect = match spec.effect {
        MetaEffect::None => "",
        MetaEffect::Change => "changes",
        MetaEffect::Grow => "changes, the store grows",
        MetaEffect::Report => "reports a change",
    };
    let stage = match spec.stage {
        Stage::Reclaim => "reclaim",
        Stage::Session => "session",
        Stage::Lock => "lock",
        Stage::Command => "command",
    };
    let entries = spec.entries.into_iter().flatten().map(|entry| match (entry.names, entry.change) {
        (EntryNames::One(_), EntryChange::None) => "reads a name",
        (EntryNames::WithPrefix(_), _) => "reads names",
        (_, EntryChange::Add) => "adds a name",
        (_, EntryChange::Remove) => "removes a name",
    });
    let entries: Vec<&str> = entries.collect();
    let conflict = match (spec.mutates() || spec.effect == MetaEffect::Report, spec.conflict) {
        (false, _) => "",
        (true, LeaseConflict::Recall) => "recalls",
        (true, LeaseConflict::Share) => "shares",
    };
    let checked = if spec.is_unchecked_by_kernel { "service" } else { "" };
    format!("| `{}` | {stage} | {effect} | {} | {conflict} | {checked} |", spec.name, entries.join(", "))
}

fn document() -> String {
    let mut page = String::from(
        "# Operations\n\n\
         Written by a test of `wire` from `crates/wire/src/spec`; don't edit by hand. Callers are in\n\
         [authorization](authorization.md).\n\n\
         ## Storage service\n\n\
         *Right*: what the capability of a client has to allow. *Changed*: bytes of the chunk file that\n\
         differ afterwards for its readers. *Locked*: bytes that nothing else may use meanwhile on a replica.\n\n\
         | operation | effect | right | payload | changed | locked | groups |\n|---|---|---|---|---|---|---|\n",
    );
    for op in storage_ops() {
        writeln!(page, "{}", storage_row(&op)).expect("a string takes it");
    }
    page.push_str(
        "\n## Metadata service\n\n\
         *Leases*: what a change does to leases of other sessions. *Permission*: checked by the service alone,\n\
         where the client's kernel doesn't check it. `open` and `may-open` change something where they ask for\n\
         the right to write.\n\n\
         | operation | stage | effect | directory entries | leases | permission |\n|---|---|---|---|---|---|\n",
    );
    let register = MetaOp::Register {
        in_use: vec![],
        pending_creates: vec![],
        pending_changes: vec![],
        reporting_process: 0,
    };
    for op in meta_ops().into_iter().chain([register]) {
        writeln!(page, "{}", meta_row(&op)).expect("a string takes it");
    }
    page
}

#[test]
fn the_page_shows_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/operations.md");
    if std::env::var_os("WEFT_NEW_OPERATIONS").is_some() {
        std::fs::write(path, document()).unwrap();
    }
    let file = std::fs::read_to_string(path).unwrap();
    assert_eq!(file, document(), "WEFT_NEW_OPERATIONS=1 cargo test -p wire writes it again");
}

#[test]
fn what_a_storage_operation_changes_is_locked_by_one_that_changes() {
    for op in storage_ops() {
        let spec = op.spec();
        assert!(op.exclusive_range(1).is_none() || spec.is_change(), "{}", spec.name);
        assert!(op.changed_content(1).is_none() || spec.is_change(), "{}", spec.name);
        assert!(spec.right.is_some() || !spec.by_clients || !spec.is_change(), "{}", spec.name);
        let needs_buffer = spec.payload == Payload::Returned;
        assert_eq!(needs_buffer, matches!(op, StorageOp::Read { .. }), "{}", spec.name);
    }
}

#[test]
fn commands_on_names_are_executed_where_their_directory_is() {
    for op in meta_ops() {
        let spec = op.spec();
        if let Some(entry) = spec.entries[0] {
            assert_eq!(spec.home, Some(entry.dir), "{}", spec.name);
        }
        let changed = spec.changed_directories().into_iter().flatten().count();
        assert!(changed == 0 || spec.mutates(), "{}", spec.name);
        assert_eq!(spec.home.is_some(), has_subject(&spec), "{}", spec.name);
    }
    let mut homes = BTreeMap::new();
    for wish in [None, Some(LeaseMode::Read), Some(LeaseMode::Shared), Some(LeaseMode::Write)] {
        let spec_of = MetaOp::Open { ino: InodeId(9), requested_lease: wish };
        homes.insert(spec_of.spec().mutates(), wish);
    }
    assert_eq!(homes.get(&true), Some(&Some(LeaseMode::Write)), "only that lease asks to write");
}

/// Commands, locks and introductions concern an inode.
fn has_subject(spec: &wire::spec::MetaSpec<'_>) -> bool {
    matches!(spec.stage, Stage::Command | Stage::Lock) || spec.name == "supply-groups"
}
