//! Stripes that move to other groups.

use crate::support::{PartitionLocking, World};
use namespace::{
    Goal, MoveStep, StripeMove, begin_migration, begin_move, doomed, doomed_chunk_file, file_placement,
    finish_migration, finish_move, forget_migration, keys, layout_of, migrating,
};
use std::collections::BTreeSet;
use types::{ChunkFileId, ChunkSlot, GroupId, InodeId, Layout, PoolId, Scheme, SessionId};
use wire::MetaOp;

const ROOT: InodeId = InodeId::ROOT;
const KIND: (PoolId, Scheme) = (PoolId(1), Scheme::Single);

/// Every doomed chunk file: group and name.
fn doomed_files(world: &World, ino: InodeId) -> BTreeSet<(GroupId, ChunkFileId)> {
    let notes = doomed(&world.state, ino.partition(), ChunkFileId(0), 100).unwrap();
    let files = |(name, layout): (ChunkFileId, Layout)| {
        (0..layout.groups.len())
            .map(|at| (layout.groups[at], doomed_chunk_file(name, &layout, at)))
            .collect::<Vec<_>>()
    };
    notes.into_iter().flat_map(files).collect()
}

fn files_of(layout: &Layout, ino: InodeId) -> BTreeSet<(GroupId, ChunkFileId)> {
    (0..layout.groups.len()).map(|at| (layout.groups[at], layout.chunk_file(ino, at))).collect()
}

fn carry_out(world: &mut World, step: MoveStep) {
    let MoveStep::Writes(writes) = step else { panic!("{step:?}") };
    world.state.write(writes);
}

fn written(world: &mut World) -> (InodeId, Layout) {
    let ino = world.create(ROOT, "file");
    let layout = world.file(MetaOp::BeginWrite { ino }).unwrap().layout.unwrap();
    world
        .run(MetaOp::EndWrite {
            ino,
            size: 1 << 22,
            blocks: 8,
            lens: Vec::new(),
            mtime: None,
            done: true,
            kill_suid_sgid: false,
        })
        .unwrap();
    (ino, layout)
}

#[test]
fn at_every_step_other_chunk_files_are_doomed() {
    let mut world = World::new(PartitionLocking::All);
    let (ino, from) = written(&mut world);
    let moved =
        StripeMove { ino, from: from.clone(), stripe: 0, to: (GroupId(77), ChunkSlot(0)), kind: KIND };
    let begun = begin_move(&world.state, &moved).unwrap();
    carry_out(&mut world, begun);
    assert_eq!(doomed_files(&world, ino), BTreeSet::from([(GroupId(77), ino.first_chunk_file())]));
    assert_eq!(layout_of(&world.state, ino).unwrap(), Some(from.clone()));
    let finished = finish_move(&world.state, &moved).unwrap();
    carry_out(&mut world, finished);
    assert_eq!(doomed_files(&world, ino), BTreeSet::from([(from.groups[0], ino.first_chunk_file())]));
    // A second move, to a group with a chunk file of the file; the previous one has not been
    // deleted yet.
    let from = layout_of(&world.state, ino).unwrap().unwrap();
    let to = (*from.groups.last().unwrap(), ChunkSlot(1));
    let again = StripeMove { ino, from: from.clone(), stripe: 0, to, kind: KIND };
    for step in [begin_move, finish_move] {
        let step = step(&world.state, &again).unwrap();
        carry_out(&mut world, step);
    }
    let now = layout_of(&world.state, ino).unwrap().unwrap();
    assert_eq!(now.chunk_file(ino, 0), ino.chunk_file(ChunkSlot(1)));
    assert_eq!(files_of(&now, ino).len(), now.groups.len(), "no two stripes in one chunk file");
    let left =
        BTreeSet::from([again.source(), moved.source()].map(|(group, slot)| (group, ino.chunk_file(slot))));
    assert_eq!(doomed_files(&world, ino), left);
    assert!(files_of(&now, ino).is_disjoint(&left));
    // With the file, all its data is deleted, and its chunk files are recorded as doomed.
    world.unlink(ROOT, "file").unwrap();
    world.reclaim(ino);
    let all: BTreeSet<_> = files_of(&now, ino).union(&left).copied().collect();
    assert_eq!(doomed_files(&world, ino), all);
    world.check_invariants();
}

#[test]
fn a_file_that_changed_meanwhile_is_left_alone() {
    let mut world = World::new(PartitionLocking::All);
    let (ino, from) = written(&mut world);
    let moved = StripeMove { ino, from, stripe: 0, to: (GroupId(77), ChunkSlot(0)), kind: KIND };
    let begun = begin_move(&world.state, &moved).unwrap();
    carry_out(&mut world, begun);
    world.session = SessionId(5);
    world.run(MetaOp::BeginWrite { ino }).unwrap();
    assert_eq!(finish_move(&world.state, &moved).unwrap(), MoveStep::BeingWritten);
    world
        .run(MetaOp::EndWrite {
            ino,
            size: 0,
            blocks: 8,
            lens: Vec::new(),
            mtime: None,
            done: true,
            kill_suid_sgid: false,
        })
        .unwrap();
    assert!(matches!(finish_move(&world.state, &moved).unwrap(), MoveStep::Writes(_)));
    let other = StripeMove { from: moved.after(), ..moved.clone() };
    assert_eq!(finish_move(&world.state, &other).unwrap(), MoveStep::Changed);
    assert_eq!(begin_move(&world.state, &other).unwrap(), MoveStep::Changed);
    world.unlink(ROOT, "file").unwrap();
    world.reclaim(ino);
    assert_eq!(finish_move(&world.state, &moved).unwrap(), MoveStep::Changed);
    assert!(
        doomed_files(&world, ino).contains(&(GroupId(77), ino.first_chunk_file())),
        "the copy goes with it"
    );
    assert!(!world.holds(keys::inode(ino)));
}

#[test]
fn a_file_that_is_to_be_mirrored_says_so_until_all_of_it_is() {
    let mut world = World::new(PartitionLocking::All);
    let (ino, from) = written(&mut world);
    let goal = Goal { pool: PoolId(1), scheme: Scheme::Mirror(2) };
    let begun = begin_migration(&world.state, ino, goal).unwrap();
    carry_out(&mut world, begun);
    let notes = |world: &World| migrating(&world.state, ino.partition(), InodeId(0), 10).unwrap();
    assert_eq!(notes(&world), [(ino, goal)]);
    assert_eq!(
        file_placement(&world.state, ino).unwrap().unwrap().goal,
        goal,
        "what comes later is there already"
    );
    let is_there = |group: GroupId| group.0 >= 77;
    assert_eq!(finish_migration(&world.state, (ino, goal), is_there).unwrap(), MoveStep::Changed);
    for (stripe, group) in (0..from.groups.len()).zip(77..) {
        let from = layout_of(&world.state, ino).unwrap().unwrap();
        let kind = (goal.pool, goal.scheme);
        let moved = StripeMove { ino, from, stripe, to: (GroupId(group), ChunkSlot(0)), kind };
        for step in [begin_move, finish_move] {
            let step = step(&world.state, &moved).unwrap();
            carry_out(&mut world, step);
        }
    }
    assert_eq!(layout_of(&world.state, ino).unwrap().unwrap().scheme, goal.scheme);
    let finished = finish_migration(&world.state, (ino, goal), is_there).unwrap();
    carry_out(&mut world, finished);
    assert_eq!(notes(&world), []);
    // A migration that is begun and cancelled leaves the file where it is, and a deleted file
    // leaves no record.
    let back = Goal { scheme: Scheme::Single, ..goal };
    let begun = begin_migration(&world.state, ino, back).unwrap();
    carry_out(&mut world, begun);
    world.unlink(ROOT, "file").unwrap();
    world.reclaim(ino);
    assert_eq!(finish_migration(&world.state, (ino, back), is_there).unwrap(), MoveStep::Changed);
    let forgotten = forget_migration(&world.state, ino).unwrap();
    carry_out(&mut world, MoveStep::Writes(forgotten));
    assert_eq!(notes(&world), []);
    assert_eq!(forget_migration(&world.state, ino).unwrap(), []);
}
