//! Actions of the property test, in terms that shrink well: inodes by number of their creation,
//! names by number.

use proptest::collection::vec;
use proptest::prelude::*;
use wire::{RenameMode, XattrMode};

/// An inode, by its number among the directories or among all that were ever created (modulo the
/// count).
#[derive(Clone, Copy, Debug)]
pub enum Pick {
    Directory(u8),
    Any(u8),
}

/// An action; `name` is an index into a few names.
#[derive(Clone, Debug)]
pub enum Action {
    Create { dir: Pick, name: u8, mode: u32, exclusive: bool },
    Mkdir { dir: Pick, name: u8, mode: u32 },
    Symlink { dir: Pick, name: u8 },
    Tmpfile { dir: Pick },
    Link { of: Pick, dir: Pick, name: u8 },
    Unlink { dir: Pick, name: u8 },
    Rmdir { dir: Pick, name: u8 },
    Rename { dir: Pick, name: u8, new_dir: Pick, new_name: u8, mode: RenameMode },
    SetMode { of: Pick, permissions: u32 },
    SetOwner { of: Pick, uid: Option<u32>, gid: Option<u32> },
    WriteInline { of: Pick, offset: u8, data: Vec<u8>, kill: bool },
    Truncate { of: Pick, size: u8 },
    SetFlags { of: Pick, flags: u32, project: Option<u32> },
    SetXattr { of: Pick, name: u8, value: Vec<u8>, mode: XattrMode },
    RemoveXattr { of: Pick, name: u8 },
    Reclaim { of: Pick },
    Lookup { dir: Pick, name: u8 },
}

fn directory() -> impl Strategy<Value = Pick> {
    prop_oneof![15 => (0..8u8).prop_map(Pick::Directory), 1 => any::<u8>().prop_map(Pick::Any)]
}

fn inode() -> impl Strategy<Value = Pick> {
    any::<u8>().prop_map(Pick::Any)
}

fn name() -> std::ops::Range<u8> {
    0..4
}

fn permissions() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0o755, 0o644, 0o2775, 0o6755, 0o6644, 0o1777])
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    prop_oneof![
        2 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange),
    ]
}

/// Mostly none, since flagged inodes refuse most actions.
fn flags() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 2 => prop::sample::select(vec![1, 2, 4, 8, 12]), 1 => 0..16u32]
}

fn xattr_mode() -> impl Strategy<Value = XattrMode> {
    prop::sample::select(vec![XattrMode::Any, XattrMode::Create, XattrMode::Replace])
}

/// Changes of names.
fn naming() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (directory(), name(), permissions(), any::<bool>())
            .prop_map(|(dir, name, mode, exclusive)| Action::Create { dir, name, mode, exclusive }),
        4 => (directory(), name(), permissions())
            .prop_map(|(dir, name, mode)| Action::Mkdir { dir, name, mode }),
        1 => (directory(), name()).prop_map(|(dir, name)| Action::Symlink { dir, name }),
        1 => directory().prop_map(|dir| Action::Tmpfile { dir }),
        2 => (inode(), directory(), name()).prop_map(|(of, dir, name)| Action::Link { of, dir, name }),
        2 => (directory(), name()).prop_map(|(dir, name)| Action::Unlink { dir, name }),
        2 => (directory(), name()).prop_map(|(dir, name)| Action::Rmdir { dir, name }),
        6 => (directory(), name(), directory(), name(), rename_mode()).prop_map(
            |(dir, name, new_dir, new_name, mode)| Action::Rename { dir, name, new_dir, new_name, mode }
        ),
        1 => (directory(), name()).prop_map(|(dir, name)| Action::Lookup { dir, name }),
    ]
}

/// Changes of inodes.
fn changing() -> impl Strategy<Value = Action> {
    let data = || vec(any::<u8>(), 0..40);
    prop_oneof![
        (inode(), permissions()).prop_map(|(of, permissions)| Action::SetMode { of, permissions }),
        (inode(), prop::option::of(0..3u32), prop::option::of(0..3u32))
            .prop_map(|(of, uid, gid)| Action::SetOwner { of, uid, gid }),
        (inode(), 0..50u8, data(), any::<bool>()).prop_map(|(of, offset, data, kill)| Action::WriteInline {
            of,
            offset,
            data,
            kill
        }),
        (inode(), 0..90u8).prop_map(|(of, size)| Action::Truncate { of, size }),
        (inode(), name(), data(), xattr_mode()).prop_map(|(of, name, value, mode)| Action::SetXattr {
            of,
            name,
            value,
            mode
        }),
        (inode(), name()).prop_map(|(of, name)| Action::RemoveXattr { of, name }),
        (inode(), flags(), prop::option::of(0..3u32)).prop_map(|(of, flags, project)| Action::SetFlags {
            of,
            flags,
            project
        }),
        inode().prop_map(|of| Action::Reclaim { of }),
    ]
}

/// Up to `most` actions.
pub fn actions(most: usize) -> impl Strategy<Value = Vec<Action>> {
    vec(prop_oneof![3 => naming(), 2 => changing()], 1..most)
}
