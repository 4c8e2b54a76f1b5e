//! Random sequences of commands, against a naive model of a file system.

mod action;
mod naive;

use crate::support::{PartitionLocking, World, bytes};
use action::{Action, actions};
use naive::{Content, Model, Node};
use proptest::prelude::*;
use std::collections::BTreeMap;
use types::{Errno, InodeId};
use wire::{MetaOp, MetaReply, PatternChange};

/// Small, so that short writes reach it.
pub const INLINE_LIMIT: u64 = 64;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(actions in actions(60)) {
        compare(PartitionLocking::All, &actions);
    }

    #[test]
    fn agrees_with_the_model_when_partitions_are_taken_on_demand(actions in actions(60)) {
        compare(PartitionLocking::OnDemand, &actions);
    }
}

fn compare(holding: PartitionLocking, actions: &[Action]) {
    let mut world = World::new(holding);
    let change = PatternChange { inline_limit: Some(INLINE_LIMIT), ..PatternChange::default() };
    world.run(MetaOp::SetPattern { dir: InodeId::ROOT, change }).unwrap();
    let mut model = Model::new(world.now);
    for action in actions {
        let op = model.command(action);
        let expected = model.apply(action, world.now + 1);
        match (world.run(op.clone()), expected) {
            (Ok(reply), Ok(Some(new))) => model.nodes[new].ino = ino_of(&reply),
            (Ok(_), Ok(None)) => {}
            (Err(got), Err(expected)) => assert_eq!(got, expected, "{op:?}"),
            (got, expected) => panic!("{op:?}: {got:?}, where the model says {expected:?}"),
        }
        for index in 0..model.nodes.len() {
            compare_node(&mut world, &model, index);
        }
    }
    world.check_invariants();
}

fn ino_of(reply: &MetaReply) -> InodeId {
    match reply {
        MetaReply::Entry(attr) | MetaReply::Created { attr, .. } => attr.ino,
        reply => panic!("no entry: {reply:?}"),
    }
}

fn compare_node(world: &mut World, model: &Model, index: usize) {
    let node = &model.nodes[index];
    // A check must not advance the clock that the next command uses.
    let now = world.now;
    if node.reclaimed {
        assert_eq!(world.getattr(node.ino).unwrap_err(), Errno::ESTALE);
    } else {
        compare_attributes(world, model, index);
        compare_xattrs(world, node);
        compare_content(world, model, node);
    }
    world.now = now;
}

fn compare_attributes(world: &mut World, model: &Model, index: usize) {
    let node = &model.nodes[index];
    let attr = world.getattr(node.ino).unwrap();
    let got = (attr.mode, attr.nlink, attr.uid, attr.gid, attr.mtime.secs, attr.ctime.secs);
    let expected = (node.mode, model.links(index), node.uid, node.gid, node.mtime, node.ctime);
    assert_eq!(got, expected, "mode, links, owner, group, mtime, ctime of node {index}");
    assert_eq!(
        (attr.flags.0, attr.project.0),
        (node.flags, node.project),
        "flags and project of node {index}"
    );
}

fn compare_xattrs(world: &mut World, node: &Node) {
    let MetaReply::Names(names) = world.run(MetaOp::ListXattr { ino: node.ino }).unwrap() else {
        panic!("no names");
    };
    // The caller isn't root, so trusted attributes aren't listed.
    let shown = node.xattrs.keys().filter(|name| !name.starts_with("trusted."));
    assert!(names.iter().eq(shown.map(|name| name.as_bytes())));
    for (name, value) in &node.xattrs {
        let reply = world.run(MetaOp::GetXattr { ino: node.ino, name: bytes(name) }).unwrap();
        assert!(matches!(reply, MetaReply::Bytes(got) if got == *value), "value of {name}");
    }
}

fn compare_content(world: &mut World, model: &Model, node: &Node) {
    match &node.content {
        Content::File(content) => {
            let info = world.file(MetaOp::Open { ino: node.ino, requested_lease: None }).unwrap();
            let mut got = info.inline.expect("the model's files stay inline").to_vec();
            assert!(got.len() as u64 <= info.attr.size);
            got.resize(info.attr.size as usize, 0);
            assert_eq!(&got, content);
        }
        Content::Directory { entries, parent, .. } => {
            let listed = world.list(node.ino, 2).unwrap();
            let got: BTreeMap<_, _> = listed.iter().map(|entry| (entry.name.clone(), entry.ino)).collect();
            assert_eq!(got.len(), listed.len(), "an entry is listed twice");
            let expected: BTreeMap<_, _> =
                entries.iter().map(|(name, &child)| (bytes(name), model.nodes[child].ino)).collect();
            assert_eq!(got, expected);
            for entry in listed {
                let attr = world.getattr(entry.ino).unwrap();
                assert_eq!(attr.mode & types::mode::S_IFMT, entry.mode);
                assert!(entry.attr.is_none_or(|listed| listed == attr));
                assert_eq!(entry.attr.is_some(), entry.ino.partition() == node.ino.partition());
            }
            assert_eq!(world.page(node.ino, 0, 1).unwrap().2, model.nodes[*parent].ino);
        }
        Content::Symlink(target) => {
            let reply = world.run(MetaOp::Readlink { ino: node.ino }).unwrap();
            assert!(matches!(reply, MetaReply::Bytes(got) if got == *target));
        }
        Content::Fifo => {}
    }
}
