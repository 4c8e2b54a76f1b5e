use crate::support::{PartitionLocking, World};
use types::{Chooser, Errno, InodeId, PoolId, StripePattern};
use wire::{EntryDescription, MetaOp, MetaReply, PatternChange};

const ROOT: InodeId = InodeId::ROOT;

fn description(reply: MetaReply) -> EntryDescription {
    match reply {
        MetaReply::Description(description) => *description,
        reply => panic!("no description: {reply:?}"),
    }
}

fn change(world: &mut World, dir: InodeId, change: PatternChange) -> Result<EntryDescription, Errno> {
    world.run(MetaOp::SetPattern { dir, change }).map(description)
}

fn describe(world: &mut World, ino: InodeId) -> EntryDescription {
    description(world.run(MetaOp::Describe { ino }).unwrap())
}

#[test]
fn what_is_made_in_a_directory_takes_its_pattern_and_keeps_it() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    let early = world.create(dir, "early");
    let set = PatternChange {
        pool: Some("nvme".into()),
        chunk_size: Some(65536),
        stripe_count: Some(2),
        inline_limit: Some(100),
        chooser: Some(Chooser::Random),
        scheme: Some("single".into()),
    };
    let expected = StripePattern {
        pool: PoolId(1),
        chunk_size: 65536,
        stripe_count: 2,
        inline_limit: 100,
        chooser: Chooser::Random,
        ..StripePattern::default()
    };
    let set = change(&mut world, dir, set).unwrap();
    assert_eq!((set.pattern, set.pool.as_str(), set.inline), (expected, "nvme", None));
    let inner = world.mkdir(dir, "inner");
    let late = world.create(inner, "late");
    assert_eq!(describe(&mut world, late).pattern, expected);
    assert_eq!(describe(&mut world, late).inline, Some(0));
    assert_eq!(describe(&mut world, early).pattern, StripePattern::default());
    let layout = world.file(MetaOp::BeginWrite { ino: late }).unwrap().layout.unwrap();
    assert_eq!((layout.chunk_size, layout.groups.len()), (65536, 2));
    assert_eq!(describe(&mut world, late).layout, Some(layout));
}

#[test]
fn a_scheme_needs_groups_of_the_pool() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    let mirror = PatternChange { scheme: Some("mirror:2".into()), ..PatternChange::default() };
    assert_eq!(change(&mut world, dir, mirror.clone()).unwrap_err(), Errno::ENODEV);
    assert_eq!(describe(&mut world, dir).pattern, StripePattern::default());
    let members = world.map.targets.iter().take(2).map(|target| target.id).collect();
    let scheme = types::Scheme::Mirror(2);
    let single = types::Group::single(types::GroupId(100_001), PoolId(1), types::TargetId(0));
    world.map.groups.push(types::Group { scheme, members, ..single });
    assert_eq!(change(&mut world, dir, mirror).unwrap().pattern.scheme, scheme);
    let file = world.create(dir, "file");
    let layout = world.file(MetaOp::BeginWrite { ino: file }).unwrap().layout.unwrap();
    assert_eq!((layout.scheme, layout.groups), (scheme, vec![types::GroupId(100_001)]));
    // Settings that don't concern groups can be changed even if the groups are gone.
    world.map.groups.pop();
    let other = PatternChange { stripe_count: Some(3), ..PatternChange::default() };
    assert_eq!(change(&mut world, dir, other).unwrap().pattern.stripe_count, 3);
}

#[test]
fn what_is_out_of_bounds_changes_nothing() {
    let mut world = World::new(PartitionLocking::All);
    let none = PatternChange::default();
    let refused = [
        PatternChange { pool: Some("tape".into()), ..none.clone() },
        PatternChange { chunk_size: Some(1 << 32), ..none.clone() },
        PatternChange { chunk_size: Some(100_000), ..none.clone() },
        PatternChange { stripe_count: Some(0), ..none.clone() },
        PatternChange { stripe_count: Some(65536), ..none.clone() },
        PatternChange { inline_limit: Some(65537), ..none.clone() },
        PatternChange { scheme: Some("mirror:4".into()), ..none.clone() },
    ];
    for set in refused {
        assert_eq!(change(&mut world, ROOT, set).unwrap_err(), Errno::EINVAL);
    }
    assert_eq!(describe(&mut world, ROOT).pattern, StripePattern::default());
    let file = world.create(ROOT, "file");
    assert_eq!(change(&mut world, file, none).unwrap_err(), Errno::ENOTDIR);
}
