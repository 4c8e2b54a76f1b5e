//! State of a run: the model, the guarantees given to the application, and the operation in flight.

use crate::driver::{FoundNode, MAX_HELD, OperationResult};
use crate::model::{Model, Node, NodeId, Outcome};
use crate::operation::{Operation, Rng, within};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{ByteRange, Errno, InodeId};

/// Maximum number of states since the last sync. After a power failure, the names may match any of
/// these states; a sync drops all but the last. The run syncs at this limit, which bounds the cost
/// of a long run without a sync.
pub const MAX_HISTORY: usize = 256;

/// How a run was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The process crashed; the machine kept running.
    Kill,
    /// The machine lost power.
    PowerCut,
}

/// The model, and the guarantees given to the application.
pub struct Oracle {
    pub model: Model,
    pub rng: Rng,
    /// Nodes that the driver holds open.
    pub held: Vec<NodeId>,
    /// The operation in flight, with the model after it.
    in_flight: Option<(Operation, Model, Option<NodeId>)>,
    /// Name-space states since the last sync, oldest first. The last one is the model.
    history: Vec<Model>,
    /// Contents of each file since its last sync, oldest first.
    versions: BTreeMap<NodeId, Vec<Rc<Vec<u8>>>>,
}

impl Oracle {
    /// Creates the state of an empty file system.
    pub fn new(seed: u64) -> Oracle {
        let model = Model::default();
        Oracle {
            history: vec![model.clone()],
            model,
            rng: Rng(seed),
            held: Vec::new(),
            in_flight: None,
            versions: BTreeMap::new(),
        }
    }

    /// Chooses the next operation and records it as in flight.
    pub fn begin(&mut self) -> Operation {
        let operation = if self.history.len() >= MAX_HISTORY {
            Operation::SyncAll
        } else {
            Operation::random(&mut self.rng, &self.model)
        };
        let mut after = self.model.clone();
        let changed = operation.apply(&mut after, &self.held);
        self.in_flight = Some((operation.clone(), after, changed));
        operation
    }

    /// Returns the result that the application must get from the operation in flight.
    pub fn expected(&self) -> Outcome<OperationResult> {
        let (operation, after, _) = self.in_flight.as_ref().expect("an operation is in flight");
        let mut trial = self.model.clone();
        match operation {
            Operation::Create { path } => trial.create(path).map(|_| OperationResult::Done),
            Operation::Mkdir { path } => trial.mkdir(path).map(|_| OperationResult::Done),
            Operation::Unlink { path } => trial.unlink(path).map(|()| OperationResult::Done),
            Operation::Rmdir { path } => trial.rmdir(path).map(|()| OperationResult::Done),
            Operation::Link { from, to } => trial.link(from, to).map(|()| OperationResult::Done),
            Operation::Rename { from, to } => trial.rename(from, to).map(|()| OperationResult::Done),
            Operation::Write { path, .. }
            | Operation::Truncate { path, .. }
            | Operation::Punch { path, .. }
            | Operation::Fsync { path }
            | Operation::Hold { path } => self.file(path).map(|_| OperationResult::Done),
            Operation::Read { path, range } => {
                self.file(path).map(|id| OperationResult::Bytes(cut(&self.model.content(id), *range)))
            }
            Operation::UseHeld { index, range, .. } => Ok(match self.held.get(*index) {
                Some(&id) => OperationResult::Bytes(cut(&after.content(id), *range)),
                None => OperationResult::Done,
            }),
            Operation::Stat { path } => self.model.walk(path).map(|id| {
                let is_file = matches!(self.model.node(id), Some(Node::File { .. }));
                OperationResult::Stat(
                    is_file.then(|| (self.model.content(id).len() as u64, self.model.links(id))),
                )
            }),
            Operation::List { path } => {
                let entries = self.model.walk(path).and_then(|id| self.model.entries(id));
                entries.map(|entries| OperationResult::Names(entries.keys().cloned().collect()))
            }
            Operation::SyncAll | Operation::Sleep { .. } => Ok(OperationResult::Done),
        }
    }

    fn file(&self, path: &str) -> Outcome<NodeId> {
        let id = self.model.walk(path)?;
        match self.model.node(id) {
            Some(Node::File { .. }) => Ok(id),
            _ => Err(Errno::EISDIR),
        }
    }

    /// Records that the operation in flight returned: its effect is acknowledged.
    pub fn acknowledge(&mut self) {
        let (operation, after, changed) = self.in_flight.take().expect("an operation is in flight");
        if let Some(id) = changed {
            let before = self.model.content(id);
            self.versions.entry(id).or_insert_with(|| vec![before]).push(after.content(id));
        }
        if after != self.model {
            self.model = after;
            self.history.push(self.model.clone());
        }
        match operation {
            Operation::Fsync { path } => {
                if let Ok(id) = self.file(&path) {
                    self.versions.insert(id, vec![self.model.content(id)]);
                    self.history = vec![self.model.clone()];
                }
            }
            Operation::SyncAll => {
                self.versions.clear();
                self.history = vec![self.model.clone()];
            }
            Operation::Hold { path } => {
                if let Ok(id) = self.file(&path) {
                    if self.held.len() == MAX_HELD {
                        self.held.remove(0);
                    }
                    self.held.push(id);
                }
            }
            _ => {}
        }
    }

    /// Compares the tree found after a restart with the guarantees, and continues from it.
    pub fn check_recovered(
        &mut self,
        how: Interruption,
        found: &BTreeMap<String, FoundNode>,
    ) -> Result<(), String> {
        let in_flight = self.in_flight.take();
        let mut candidates = match how {
            Interruption::Kill => vec![self.model.clone()],
            Interruption::PowerCut => self.history.clone(),
        };
        if let Some((_, after, changed)) = &in_flight {
            candidates.push(after.clone());
            if let Some(id) = changed {
                let before = self.model.content(*id);
                self.versions.entry(*id).or_insert_with(|| vec![before]).push(after.content(*id));
            }
        }
        let unfinished = in_flight.and_then(|(_, _, changed)| changed);
        let mut complaints: Vec<String> = Vec::new();
        for candidate in candidates.iter().rev() {
            match self.matches(how, candidate, unfinished, found) {
                Ok(()) => {
                    self.continue_from(how, candidate.clone(), found);
                    return Ok(());
                }
                Err(difference) if complaints.last() != Some(&difference) => complaints.push(difference),
                Err(_) => {}
            }
        }
        Err(format!(
            "after {how:?} the tree matches none of the {} allowed states; mismatches, newest first: {}",
            candidates.len(),
            complaints.join(" | ")
        ))
    }

    /// Records that everything is on disk: from now on only the current model is allowed.
    pub fn drop_history(&mut self) {
        self.history = vec![self.model.clone()];
        self.versions.clear();
        self.held.clear();
    }

    fn matches(
        &self,
        how: Interruption,
        candidate: &Model,
        unfinished: Option<NodeId>,
        found: &BTreeMap<String, FoundNode>,
    ) -> Result<(), String> {
        let paths = candidate.paths();
        if let Some(path) = paths.keys().find(|path| !found.contains_key(*path)) {
            return Err(format!("{path} is missing"));
        }
        if let Some(path) = found.keys().find(|path| !paths.contains_key(*path)) {
            return Err(format!("{path} should not exist"));
        }
        let mut inodes: BTreeMap<NodeId, InodeId> = BTreeMap::new();
        for (path, &id) in &paths {
            let found = &found[path];
            if *inodes.entry(id).or_insert(found.ino) != found.ino {
                return Err(format!("{path} is no longer a link to the same file"));
            }
            match (candidate.node(id), &found.file) {
                (Some(Node::Directory { .. }), None) => {}
                (Some(Node::File { links, .. }), Some((content, found_links))) => {
                    if links != found_links {
                        return Err(format!("{path} has link count {found_links}, not {links}"));
                    }
                    self.content_is_allowed(how, id, unfinished, content)
                        .map_err(|why| format!("{path}: {why}"))?;
                }
                _ => return Err(format!("{path} has another file type")),
            }
        }
        Ok(())
    }

    /// Checks that each byte has a value that its offset had since the last sync. Where nothing may
    /// be lost, only the last value is allowed.
    fn content_is_allowed(
        &self,
        how: Interruption,
        id: NodeId,
        unfinished: Option<NodeId>,
        content: &[u8],
    ) -> Result<(), String> {
        let current = self.model.content(id);
        let all = match self.versions.get(&id) {
            Some(versions) => versions.clone(),
            None => vec![current],
        };
        let versions = match how {
            Interruption::PowerCut => &all[..],
            Interruption::Kill if unfinished == Some(id) => &all[all.len() - 2..],
            Interruption::Kill => &all[all.len() - 1..],
        };
        let sizes = versions.iter().map(|version| version.len());
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if content.len() < least || content.len() > most {
            return Err(format!("size is {}, not {least} to {most}", content.len()));
        }
        for (at, byte) in content.iter().enumerate() {
            let held = versions.iter().any(|version| version.get(at).is_some_and(|known| known == byte));
            // A file that grew may have a hole where the power failure destroyed the new bytes.
            let hole = *byte == 0 && versions.len() > 1;
            if !held && !hole {
                return Err(format!(
                    "byte {at} of {} is {byte}, a value that it has not had since the last sync ({} versions)",
                    content.len(),
                    versions.len()
                ));
            }
        }
        Ok(())
    }

    /// Makes the recovered state the model for later operations. After a power failure all of it is
    /// on disk; after a process crash, unsynced data is still unsynced.
    fn continue_from(
        &mut self,
        how: Interruption,
        mut candidate: Model,
        found: &BTreeMap<String, FoundNode>,
    ) {
        for (path, id) in candidate.paths() {
            if let Some((content, _)) = &found[&path].file
                && *candidate.content(id) != *content
            {
                candidate.edit(id, |old| old.clone_from(content));
            }
            if how == Interruption::Kill
                && let Some(versions) = self.versions.get_mut(&id)
            {
                versions.push(candidate.content(id));
            }
        }
        self.model = candidate.clone();
        self.held.clear();
        match how {
            Interruption::Kill => self.history.push(candidate),
            Interruption::PowerCut => {
                self.versions.clear();
                self.history = vec![candidate];
            }
        }
    }
}

fn cut(content: &[u8], range: ByteRange) -> Vec<u8> {
    content[within(range, content.len())].to_vec()
}
