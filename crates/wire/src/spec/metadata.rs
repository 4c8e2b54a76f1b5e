//! The operations of the metadata service.

use crate::{LeaseMode, MetaOp};
use types::InodeId;

/// When in the life of a session an operation is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Before the service knows the session: the session reports what it holds.
    Reclaim,
    /// It concerns the session or the service as a whole.
    Session,
    /// It concerns a file lock.
    Lock,
    /// It is a command: an executor runs it.
    Command,
}

/// What an operation does to the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetaEffect {
    /// Nothing that other clients can see.
    None,
    /// Changes names, attributes or content, or asks for the right to do so.
    Change,
    /// As [`MetaEffect::Change`], and the metadata store grows by it.
    Grow,
    /// Reports the outcome of a change that the session has announced.
    Report,
}

/// What a command does to the leases of other sessions on the inodes that it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseConflict {
    /// They are recalled.
    Recall,
    /// Writers of chunks keep them.
    Share,
}

/// The names of a directory that an operation reads or changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryNames<'a> {
    /// This one.
    One(&'a [u8]),
    /// Those that begin with these bytes.
    WithPrefix(&'a [u8]),
}

impl EntryNames<'_> {
    /// Every name.
    pub const ALL: EntryNames<'static> = EntryNames::WithPrefix(b"");
}

/// What an operation does to a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryChange {
    /// Nothing.
    None,
    /// It may come to exist.
    Add,
    /// It stops to exist, or names another inode.
    Remove,
}

/// Directory entries that an operation reads or changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Their directory.
    pub dir: InodeId,
    /// Their names.
    pub names: EntryNames<'a>,
    /// What becomes of them.
    pub change: EntryChange,
}

/// The entry of an operation in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetaSpec<'a> {
    /// Name in messages and documents.
    pub name: &'static str,
    /// When it is answered.
    pub stage: Stage,
    /// What it does.
    pub effect: MetaEffect,
    /// The inode whose partition's owner executes it; of a name, its directory. `None`: it concerns
    /// a session or a service as a whole.
    pub home: Option<InodeId>,
    /// Another inode that takes part in any case.
    pub other: Option<InodeId>,
    /// The directory entries that it reads or changes. A request for a delegation recalls what is
    /// in its way by itself.
    pub entries: [Option<Entry<'a>>; 2],
    /// The inode whose attributes it changes on purpose, and not as an effect of another change.
    pub attributes_of: Option<InodeId>,
    /// What it does to leases of others.
    pub conflict: LeaseConflict,
    /// Only the service checks the user's permission. The client's kernel checks the other changes
    /// before it sends them. It takes these for something else: for a created file that needs no
    /// check, or for an extended attribute that needs write permission only.
    pub is_unchecked_by_kernel: bool,
    /// A session may find out by it that the service doesn't know it.
    pub finds_session: bool,
    /// It is answered when something happens: no deadline applies.
    pub has_no_deadline: bool,
}

impl<'a> MetaSpec<'a> {
    const fn new(name: &'static str, stage: Stage, effect: MetaEffect) -> MetaSpec<'a> {
        MetaSpec {
            name,
            stage,
            effect,
            home: None,
            other: None,
            entries: [None, None],
            attributes_of: None,
            conflict: LeaseConflict::Recall,
            is_unchecked_by_kernel: false,
            finds_session: matches!(stage, Stage::Reclaim),
            has_no_deadline: false,
        }
    }

    const fn at(self, home: InodeId) -> MetaSpec<'a> {
        MetaSpec { home: Some(home), ..self }
    }

    const fn entry(self, dir: InodeId, name: &'a [u8], change: EntryChange) -> MetaSpec<'a> {
        let entry = Entry { dir, names: EntryNames::One(name), change };
        MetaSpec { home: Some(dir), entries: [Some(entry), None], ..self }
    }

    const fn attributes(self, ino: InodeId) -> MetaSpec<'a> {
        MetaSpec { home: Some(ino), attributes_of: Some(ino), ..self }
    }

    const fn shares(self) -> MetaSpec<'a> {
        MetaSpec { conflict: LeaseConflict::Share, ..self }
    }

    const fn checked_by_service(self) -> MetaSpec<'a> {
        MetaSpec { is_unchecked_by_kernel: true, ..self }
    }

    const fn finds_session(self) -> MetaSpec<'a> {
        MetaSpec { finds_session: true, ..self }
    }

    const fn without_deadline(self, has_no_deadline: bool) -> MetaSpec<'a> {
        MetaSpec { has_no_deadline, ..self }
    }

    /// Whether it changes something, or begins to. What was begun before may be reported and
    /// released whatever the client's export allows.
    pub const fn mutates(&self) -> bool {
        matches!(self.effect, MetaEffect::Change | MetaEffect::Grow)
    }

    /// The directories whose entries it changes.
    pub fn changed_directories(&self) -> [Option<InodeId>; 2] {
        self.entries
            .map(|entry| entry.filter(|entry| entry.change != EntryChange::None).map(|entry| entry.dir))
    }

    /// The name that it may add to a directory that didn't have it.
    pub fn added(&self) -> Option<(InodeId, &'a [u8])> {
        self.entries.into_iter().flatten().find_map(|entry| match (entry.change, entry.names) {
            (EntryChange::Add, EntryNames::One(name)) => Some((entry.dir, name)),
            _ => None,
        })
    }
}

impl MetaOp {
    /// The entry of this operation in the table.
    pub fn spec(&self) -> MetaSpec<'_> {
        use EntryChange::{Add, Remove};
        use MetaEffect::{Change, Grow, Report};
        const fn command<'a>(name: &'static str, effect: MetaEffect) -> MetaSpec<'a> {
            MetaSpec::new(name, Stage::Command, effect)
        }
        const fn lock<'a>(name: &'static str) -> MetaSpec<'a> {
            MetaSpec::new(name, Stage::Lock, MetaEffect::None)
        }
        const fn session<'a>(name: &'static str) -> MetaSpec<'a> {
            MetaSpec::new(name, Stage::Session, MetaEffect::None)
        }
        const fn reclaim<'a>(name: &'static str) -> MetaSpec<'a> {
            MetaSpec::new(name, Stage::Reclaim, MetaEffect::None)
        }
        /// A change of something, or nothing.
        const fn change_if(changes: bool) -> MetaEffect {
            if changes { Change } else { MetaEffect::None }
        }
        const NONE: MetaEffect = MetaEffect::None;
        match self {
            MetaOp::Lookup { parent, name } => {
                command("lookup", NONE).entry(*parent, name, EntryChange::None)
            }
            MetaOp::Readdir { dir, prefix, .. } => {
                let names = EntryNames::WithPrefix(prefix);
                let entry = Entry { dir: *dir, names, change: EntryChange::None };
                MetaSpec { entries: [Some(entry), None], ..command("readdir", NONE).at(*dir) }
            }
            MetaOp::Getattr { ino } => command("getattr", NONE).at(*ino),
            MetaOp::Readlink { ino } => command("readlink", NONE).at(*ino),
            MetaOp::GetXattr { ino, .. } => command("get-xattr", NONE).at(*ino),
            MetaOp::ListXattr { ino } => command("list-xattr", NONE).at(*ino),
            MetaOp::Describe { ino } => command("describe", NONE).at(*ino),
            MetaOp::MigrationOf { ino } => command("migration-of", NONE).at(*ino),

            MetaOp::Create { parent, name, .. } => command("create", Grow).entry(*parent, name, Add),
            MetaOp::CommitCreate { file } => {
                command("commit-create", Grow).entry(file.parent, &file.name, Add)
            }
            MetaOp::Mkdir { parent, name, .. } => command("mkdir", Grow).entry(*parent, name, Add),
            MetaOp::Symlink { parent, name, .. } => command("symlink", Grow).entry(*parent, name, Add),
            MetaOp::Link { ino, parent, name } => {
                MetaSpec { other: Some(*ino), ..command("link", Grow).entry(*parent, name, Add) }
            }
            MetaOp::PreallocateInodes { dir, .. } => command("preallocate-inodes", Grow).at(*dir),
            MetaOp::Tmpfile { parent, .. } => command("tmpfile", Grow).at(*parent),
            MetaOp::Unlink { parent, name, .. } => command("unlink", Change).entry(*parent, name, Remove),
            MetaOp::Rmdir { parent, name } => command("rmdir", Change).entry(*parent, name, Remove),
            MetaOp::Rename { parent, name, new_parent, new_name, .. } => {
                let from = command("rename", Change).entry(*parent, name, Remove);
                let to = Entry { dir: *new_parent, names: EntryNames::One(new_name), change: Add };
                MetaSpec { other: Some(*new_parent), entries: [from.entries[0], Some(to)], ..from }
            }

            MetaOp::Setattr { ino, .. } => command("setattr", Change).attributes(*ino),
            MetaOp::SetXattr { ino, .. } => command("set-xattr", Grow).attributes(*ino),
            MetaOp::RemoveXattr { ino, .. } => command("remove-xattr", Change).attributes(*ino),
            MetaOp::SetPattern { dir, .. } => {
                command("set-pattern", Change).attributes(*dir).checked_by_service()
            }
            MetaOp::Migrate { ino, .. } => command("migrate", Change).at(*ino).checked_by_service(),

            // Readers that share a file with its writers ask for the shared lease, too.
            MetaOp::Open { ino, requested_lease: wish } => {
                command("open", change_if(*wish == Some(LeaseMode::Write))).at(*ino)
            }
            MetaOp::Reopen { ino, .. } => command("reopen", NONE).at(*ino),
            MetaOp::MayOpen { ino, wanted } => {
                command("may-open", change_if(wanted & 2 != 0)).at(*ino).checked_by_service()
            }
            MetaOp::WriteInline { ino, .. } => command("write-inline", Grow).at(*ino),
            MetaOp::BeginWrite { ino } => command("begin-write", Change).at(*ino).shares(),
            MetaOp::DropInline { ino, .. } => command("drop-inline", Change).at(*ino),
            MetaOp::EndWrite { ino, .. } => command("end-write", Report).at(*ino).shares(),
            MetaOp::Truncate { ino, .. } => command("truncate", Change).at(*ino),
            MetaOp::TruncateDone { ino } => command("truncate-done", Report).at(*ino).shares(),
            MetaOp::Reclaim { ino, .. } => command("reclaim", NONE).at(*ino),

            MetaOp::Lock { ino, wait, .. } => lock("lock").at(*ino).without_deadline(*wait),
            MetaOp::Unlock { ino, .. } => lock("unlock").at(*ino),
            MetaOp::TestLock { ino, .. } => lock("test-lock").at(*ino),

            MetaOp::Register { .. } => reclaim("register"),
            MetaOp::ReclaimLocks { .. } => reclaim("reclaim-locks"),
            MetaOp::ReclaimOpens { .. } => reclaim("reclaim-opens"),
            MetaOp::ReclaimSizes { .. } => reclaim("reclaim-sizes"),

            MetaOp::Follow { .. } => session("follow").finds_session(),
            MetaOp::NextRecalls { .. } => session("next-recalls").finds_session().without_deadline(true),
            MetaOp::EndSession => session("end-session").finds_session(),
            MetaOp::SupplyGroups { ino, .. } => session("supply-groups").at(*ino),
            MetaOp::AckRecalls { .. } => session("ack-recalls"),
            MetaOp::RecallsInProgress { .. } => session("recalls-in-progress"),
            MetaOp::Release { .. } => session("release"),
            MetaOp::NoteAccess { .. } => MetaSpec::new("note-access", Stage::Session, Change),
            MetaOp::Usage => session("usage"),
            MetaOp::Sync => session("sync"),
        }
    }
}
