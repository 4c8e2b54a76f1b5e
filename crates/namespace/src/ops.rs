//! The commands, one file per group of them.

mod async_create;
mod attr;
mod create;
mod data;
mod link;
mod lookup;
pub(crate) mod pattern;
pub(crate) mod readdir;
mod reclaim;
mod rename;
mod unlink;
mod xattr;

pub(crate) use lookup::find;

use crate::tx::{Outcome, Tx};
use crate::{Applied, Failure};
use types::{Errno, InodeId};
use wire::{MetaOp, MetaReply};

/// Executes one command.
pub(crate) fn apply(mut tx: Tx<'_>, op: &MetaOp) -> Result<Applied, Failure> {
    let reply = execute(&mut tx, op)?;
    Ok(tx.finish(reply))
}

fn execute(tx: &mut Tx<'_>, op: &MetaOp) -> Outcome<MetaReply> {
    match op {
        MetaOp::Lookup { parent, name } => lookup::lookup(tx, *parent, name),
        MetaOp::Getattr { ino } => attr::getattr(tx, *ino),
        MetaOp::Setattr { ino, set } => attr::setattr(tx, *ino, set),
        MetaOp::Create { parent, name, mode, umask, rdev, exclusive, requested_lease: _ } => {
            let new = create::NewFile { mode: *mode, umask: *umask, rdev: *rdev, exclusive: *exclusive };
            create::create(tx, *parent, name, new)
        }
        MetaOp::PreallocateInodes { dir, count, prefix } => {
            async_create::preallocate(tx, *dir, *count, prefix)
        }
        MetaOp::CommitCreate { file } => async_create::async_create(tx, file),
        MetaOp::Mkdir { parent, name, mode, umask } => create::mkdir(tx, *parent, name, *mode, *umask),
        MetaOp::Symlink { parent, name, target } => create::symlink(tx, *parent, name, target),
        MetaOp::Tmpfile { parent, mode, umask } => create::tmpfile(tx, *parent, *mode, *umask),
        MetaOp::Link { ino, parent, name } => link::link(tx, *ino, *parent, name),
        MetaOp::Unlink { parent, name, ino } => unlink::unlink(tx, (*parent, name), *ino),
        MetaOp::Rmdir { parent, name } => unlink::rmdir(tx, *parent, name),
        MetaOp::Rename { parent, name, new_parent, new_name, mode } => {
            let from = rename::EntryRef { dir: *parent, name };
            let to = rename::EntryRef { dir: *new_parent, name: new_name };
            rename::rename(tx, from, to, *mode)
        }
        MetaOp::Readlink { ino } => lookup::readlink(tx, *ino),
        MetaOp::Readdir { dir, cookie, limit, attributes, prefix } => {
            readdir::readdir(tx, *dir, (*cookie, *limit), prefix, *attributes)
        }
        MetaOp::GetXattr { ino, name } => xattr::get(tx, *ino, name),
        MetaOp::SetXattr { ino, name, value, mode, kill_sgid } => {
            xattr::set(tx, *ino, name, xattr::NewValue { value, mode: *mode, kill_sgid: *kill_sgid })
        }
        MetaOp::ListXattr { ino } => xattr::list(tx, *ino),
        MetaOp::RemoveXattr { ino, name } => xattr::remove(tx, *ino, name),
        MetaOp::Open { ino, requested_lease } => data::open(tx, *ino, requested_lease.is_none()),
        MetaOp::Reopen { ino, .. } => data::open(tx, *ino, false),
        // The permission was checked before.
        MetaOp::MayOpen { ino, .. } => tx.inode(*ino).map(|_| MetaReply::Unit),
        MetaOp::WriteInline { ino, offset, data, kill_suid_sgid, at_end } => {
            let (offset, kill_suid_sgid, at_end) = (*offset, *kill_suid_sgid, *at_end);
            data::write_inline(tx, *ino, data, data::InlinePosition { offset, at_end }, kill_suid_sgid)
        }
        MetaOp::BeginWrite { ino } => data::begin_write(tx, *ino),
        MetaOp::DropInline { ino, size, mtime } => data::drop_inline(tx, *ino, *size, *mtime),
        MetaOp::EndWrite { ino, size, blocks, lens, mtime, done, kill_suid_sgid } => {
            let report = data::Report {
                size: *size,
                blocks: *blocks,
                lens,
                mtime: *mtime,
                done: *done,
                kill_suid_sgid: *kill_suid_sgid,
            };
            data::end_write(tx, *ino, report)
        }
        MetaOp::Truncate { ino, size, kill_suid_sgid } => data::truncate(tx, *ino, *size, *kill_suid_sgid),
        MetaOp::TruncateDone { ino } => data::truncate_done(tx, *ino),
        MetaOp::Reclaim { ino, others } => reclaim::reclaim(tx, *ino, others),
        MetaOp::Describe { ino } => pattern::describe(tx, *ino),
        MetaOp::SetPattern { dir, change } => pattern::set_pattern(tx, *dir, change),
        MetaOp::Migrate { ino, pool, scheme } => pattern::migrate(tx, *ino, pool, scheme),
        MetaOp::MigrationOf { ino } => pattern::migration_of(tx, *ino),
        MetaOp::Lock { .. }
        | MetaOp::Unlock { .. }
        | MetaOp::TestLock { .. }
        | MetaOp::ReclaimLocks { .. }
        | MetaOp::ReclaimOpens { .. }
        | MetaOp::ReclaimSizes { .. }
        | MetaOp::SupplyGroups { .. }
        | MetaOp::Register { .. }
        | MetaOp::Follow { .. }
        | MetaOp::NextRecalls { .. }
        | MetaOp::AckRecalls { .. }
        | MetaOp::RecallsInProgress { .. }
        | MetaOp::Release { .. }
        | MetaOp::EndSession
        | MetaOp::NoteAccess { .. }
        | MetaOp::Usage
        | MetaOp::Sync => Err(Errno::ENOSYS.into()),
    }
}

/// The inode that a command reads first.
pub(crate) fn subject(op: &MetaOp) -> InodeId {
    op.spec().home.unwrap_or(InodeId::ROOT)
}
