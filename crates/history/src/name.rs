//! A name that is created exclusively, removed and looked up.

use crate::model::Model;
use crate::operation::Operation;

/// Inode number of the file with the name; `None` if unknown.
pub type Inode = Option<u64>;

/// An operation on a name, with its answer; `Open` is a change with an uncertain outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    /// `O_CREAT | O_EXCL`.
    Create(Created),
    /// `unlink`.
    Unlink(Unlinked),
    /// `stat`, or an open of an existing file.
    Lookup(Found),
}

/// Result of an exclusive create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Created {
    New(Inode),
    Exists,
    Open,
}

/// Result of an unlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Unlinked {
    Done,
    Missing,
    Open,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Found {
    File(u64),
    Missing,
}

/// The sequential name, which doesn't exist at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Name;

impl Model for Name {
    type Action = Action;
    /// The file with the name, if there is one.
    type State = Option<Inode>;

    fn initial(&self) -> Self::State {
        None
    }

    fn step(&self, state: &Self::State, action: &Action) -> Option<Self::State> {
        match (*action, *state) {
            (Action::Create(Created::New(inode)), None) => Some(Some(inode)),
            (Action::Create(Created::Open), None) => Some(Some(None)),
            (Action::Create(Created::Exists | Created::Open), Some(_)) => Some(*state),
            (Action::Unlink(Unlinked::Done | Unlinked::Open), Some(_)) => Some(None),
            (Action::Unlink(Unlinked::Missing | Unlinked::Open), None) => Some(None),
            (Action::Lookup(Found::Missing), None) => Some(None),
            (Action::Lookup(Found::File(found)), Some(inode)) => {
                inode.is_none_or(|inode| inode == found).then_some(Some(Some(found)))
            }
            _ => None,
        }
    }

    fn is_read_only(&self, action: &Action) -> bool {
        matches!(
            action,
            Action::Lookup(_) | Action::Create(Created::Exists) | Action::Unlink(Unlinked::Missing)
        )
    }

    /// Each read-only operation separately.
    fn removable(&self, operations: &[Operation<Action>]) -> Vec<Vec<usize>> {
        let is_read_only = |index: &usize| self.is_read_only(&operations[*index].action);
        (0..operations.len()).filter(is_read_only).map(|index| vec![index]).collect()
    }

    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Create(Created::New(Some(inode))) => format!("create -> inode {inode}"),
            Action::Create(Created::New(None)) => "create -> done".to_string(),
            Action::Create(Created::Exists) => "create -> EEXIST".to_string(),
            Action::Create(Created::Open) => "create -> outcome unknown".to_string(),
            Action::Unlink(Unlinked::Done) => "unlink -> done".to_string(),
            Action::Unlink(Unlinked::Missing) => "unlink -> ENOENT".to_string(),
            Action::Unlink(Unlinked::Open) => "unlink -> outcome unknown".to_string(),
            Action::Lookup(Found::File(inode)) => format!("stat -> inode {inode}"),
            Action::Lookup(Found::Missing) => "stat -> ENOENT".to_string(),
        }
    }

    fn describe_state(&self, state: &Self::State) -> String {
        match state {
            None => "doesn't exist".to_string(),
            Some(None) => "exists, inode unknown".to_string(),
            Some(Some(inode)) => format!("is inode {inode}"),
        }
    }
}
