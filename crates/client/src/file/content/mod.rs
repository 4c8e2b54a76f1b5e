//! State of a file's content: what is loaded under the lease, and what only this session knows.
//!
//! # Phases
//!
//! *Unloaded* → *loaded* → *unloaded* of the next generation, as often as the session gets and
//! loses a lease on the file. Whatever is valid under the lease alone is dropped with it. What
//! outlives it: unsynced changes, failures to report, and the size that the session knew last.
//!
//! Loaded content is in a phase of each of these kinds ([`Phase`] has the first four, which events
//! change; the fields show the others):
//!
//! | kind | phases |
//! |---|---|
//! | knowledge | certain; *uncertain*: a change of size or inline content was not answered, and the state is loaded again before it is used |
//! | writer record | none; *recorded*: the service expects a report (`BeginWrite`); *unconfirmed*: an `EndWrite` was not answered |
//! | report | up to date; *needed*: size or mtime differ from the service's, which lacks the time of the last change |
//! | chunks' ends | at the size; *truncation pending*: chunks may reach beyond it |
//! | storage | empty; inline; converting (inline content and a layout); in chunks |
//! | epoch | clean; *tainted*: an abandoned change may be in flight |
//! | delayed writes | none; *dirty extent* |
//!
//! `has_no_xattrs` and `has_suid_sgid` are knowledge of the inode rather than phases: both may be
//! set while nothing is loaded.
//!
//! # Invariants
//!
//! Debug builds check these whenever the lock of the content is released (`lock`, `invariants`).
//! - A generation ends by an unload, and its number isn't used again. Within a generation, content
//!   is loaded once.
//! - Unloaded content has no size, layout, epoch, record of a writer, or anything to report.
//! - Only a recorded or unconfirmed writer has something to report; a writer has a layout.
//! - Uncertain content that is in chunks has a truncation pending: after a `Truncate`, the service
//!   waits for it.
//! - There is a dirty extent only under `Write`, of a recorded writer, in chunks, with certain
//!   content and no truncation pending. The size includes it, and it ends where the last write did.

pub(crate) mod lock;
pub(crate) mod phase;

#[cfg(debug_assertions)]
mod invariants;

use self::phase::{Actions, Event, Phase};
use crate::file::access::{LeaseNeed, ended_lease};
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::size_recovery::LastSize;
use crate::file::write_behind::{DirtyExtent, FlushFailures};
use crate::session::verifiers::Unsynced;
use bytes::Bytes;
use std::sync::Arc;
use types::{Attr, Errno, InodeId, Layout, Result, Timestamp, mode};
use wire::{BegunWrite, FileInfo, LeaseMode, MetaReply};

/// What is known of a file that was just created.
#[derive(Clone)]
pub(crate) struct NewFile {
    inline_limit: u32,
    has_no_xattrs: bool,
    /// The write that its create has begun.
    begun: Option<Box<BegunWrite>>,
}

impl NewFile {
    pub(crate) fn of(reply: &MetaReply) -> Option<NewFile> {
        match reply {
            MetaReply::Created { inline_limit, has_no_xattrs, begun, .. } => Some(NewFile {
                inline_limit: *inline_limit,
                has_no_xattrs: *has_no_xattrs,
                begun: begun.clone(),
            }),
            _ => None,
        }
    }

    /// Whether the service has recorded this session as the writer of its chunks.
    pub(crate) fn has_begun_write(&self) -> bool {
        self.begun.is_some()
    }
}

/// Lower bounds of the lengths of a file's chunk files, in stripe order; `None` if unknown.
pub(crate) type LengthBounds = Option<Arc<Vec<u64>>>;

/// State of a file's content. Its lock is held only briefly, never across a wait.
pub(crate) struct Content {
    /// What is known, what the service has on record, and what is to be done.
    pub(crate) phase: Phase,
    /// How often the content was unloaded. An operation of an earlier generation must not update
    /// the current state.
    pub(crate) generation: u64,
    /// The lease under which the content is loaded.
    pub(crate) lease: LeaseMode,
    /// The lease's epoch, which every request for chunks carries; 0: none is needed.
    pub(crate) epoch: u64,
    /// The last tainted epoch: a change in it was abandoned that may still be in flight to a
    /// target.
    pub(crate) tainted_epoch: u64,
    /// Size of the file; under a shared lease, as far as this session knows it.
    pub(crate) size: u64,
    pub(crate) layout: Option<Arc<Layout>>,
    /// Known lower bounds of the lengths of its chunk files.
    pub(crate) length_bounds: LengthBounds,
    /// This session has created the file, has only written to it since, and no other has: there are
    /// no other chunks.
    pub(crate) has_only_written_chunks: bool,
    pub(crate) inline: Option<Bytes>,
    pub(crate) inline_limit: u32,
    /// It has no extended attributes: it was created while open here, and got none since.
    pub(crate) has_no_xattrs: bool,
    /// It has setuid or setgid, which a write may have to clear.
    pub(crate) has_suid_sgid: bool,
    /// Recorded time of its last read.
    pub(crate) atime: Timestamp,
    /// When content or inode last changed, except for unreported changes.
    pub(crate) last_change: Timestamp,
    /// The dirty extent: delayed writes that the storage services don't have yet.
    pub(crate) dirty: Option<DirtyExtent>,
    /// Size of the file when its lease ended with the service. Outlives an unload.
    pub(crate) last_size: Option<LastSize>,
    /// Where the last write ended.
    pub(crate) last_write_end: Option<u64>,
    /// Delayed writes that could not be stored. Outlives an unload.
    pub(crate) flush_failures: FlushFailures,
    /// Changes of chunks that may not be on disk. Outlives an unload.
    pub(crate) unsynced: Unsynced,
    /// The layouts under which these changes were made: a file may migrate away from where they
    /// were lost. Outlives an unload.
    pub(crate) unsynced_layouts: Vec<Arc<Layout>>,
    /// Changes of size, layout and inline content that may not be on the metadata store's disk.
    /// Outlives an unload.
    pub(crate) unsynced_metadata: Unsynced,
}

impl Default for Content {
    fn default() -> Content {
        Content {
            phase: Phase::default(),
            generation: 0,
            lease: LeaseMode::Read,
            epoch: 0,
            tainted_epoch: 0,
            size: 0,
            layout: None,
            length_bounds: None,
            has_only_written_chunks: false,
            inline: None,
            inline_limit: 0,
            has_no_xattrs: false,
            has_suid_sgid: false,
            atime: Timestamp::default(),
            last_change: Timestamp::default(),
            dirty: None,
            last_size: None,
            last_write_end: None,
            flush_failures: FlushFailures::default(),
            unsynced: Unsynced::default(),
            unsynced_layouts: Vec::new(),
            unsynced_metadata: Unsynced::default(),
        }
    }
}

impl Content {
    /// Applies an event to the phase, with everything that follows from it.
    pub(crate) fn on(&mut self, event: Event) {
        let (phase, Actions { ends_recovery, reported }) = self.phase.on(event);
        self.phase = phase;
        self.has_only_written_chunks &= event.keeps_chunks();
        if ends_recovery {
            self.end_last_size();
        }
        if let Some(change) = reported {
            self.last_change = self.last_change.max(change);
        }
    }

    /// Whether its epoch is tainted: a change in flight could overwrite the results of further
    /// requests.
    pub(crate) fn is_tainted(&self) -> bool {
        self.epoch > 0 && self.tainted_epoch >= self.epoch
    }

    /// The file, generation and epoch for requests to its chunks.
    pub(crate) fn under(&self, ino: InodeId) -> LeaseContext {
        LeaseContext { ino, generation: self.generation, epoch: self.epoch, known_len: 0 }
    }

    /// Records these lengths of the chunk files and this size, which the service has.
    pub(crate) fn note_lens(&mut self, lens: &[u64], size: u64) {
        let Some(layout) = self.layout.as_ref().filter(|_| self.inline.is_none()) else { return };
        let before = self.length_bounds.as_ref().map_or(&[][..], |known| known.as_slice());
        let known = layout::length_bounds::raised(layout, before, lens, size);
        self.length_bounds = (!known.is_empty()).then(|| Arc::new(known));
    }

    /// How often a sync has found a loss.
    pub(crate) fn loss_count(&self) -> u64 {
        self.unsynced.loss_count() + self.unsynced_metadata.loss_count()
    }

    /// Records that a change of its chunks is being sent. `losses` is the current number of losses.
    pub(crate) fn begin_change(&mut self, losses: u64) {
        self.unsynced.begin(losses);
        self.note_layout();
    }

    /// Records that its current layout has, or will have, unsynced changes.
    pub(crate) fn note_layout(&mut self) {
        let Some(layout) = &self.layout else { return };
        if !self.unsynced_layouts.iter().any(|known| Arc::ptr_eq(known, layout) || known == layout) {
            self.unsynced_layouts.push(layout.clone());
        }
    }

    /// Records that a sync has covered this many changes, under all their layouts.
    pub(crate) fn synced(&mut self, changes: u64) {
        self.unsynced.synced(changes);
        if self.unsynced.is_all_synced() {
            self.unsynced_layouts.clear();
        }
    }

    /// Whether it has state that must not be dropped.
    pub(crate) fn has_unreported_state(&self) -> bool {
        self.phase.is_writer() || self.phase.is_truncation_pending() || self.is_tainted()
    }

    /// Whether the content is loaded, under a lease that meets `need`.
    pub(crate) fn is_ready(&self, need: impl Fn(&Content) -> LeaseNeed) -> bool {
        self.is_certain() && need(self).is_met_by(self.lease)
    }

    /// Loads the service's information, under a lease that has just been checked. Content that is
    /// loaded already has been valid since then and is newer; only the size of a shared file may
    /// have grown.
    pub(crate) fn load(&mut self, info: FileInfo, lease: LeaseMode) {
        if self.is_certain() {
            if self.lease == LeaseMode::Shared && lease != LeaseMode::Shared {
                self.size = self.size.max(info.attr.size);
            }
            self.epoch = self.epoch.max(info.epoch);
            self.has_only_written_chunks &= lease == LeaseMode::Write && self.lease != LeaseMode::Shared;
        } else {
            self.load_info(info);
            // Earlier uses of the file, or earlier clients, may have left chunks that aren't on
            // disk.
            if self.layout.is_some() {
                self.unsynced.assume_unsynced();
            }
        }
        self.lease = lease;
    }

    /// Checks that the content hasn't been unloaded since it had this generation.
    ///
    /// # Errors
    /// `EndedLease`: the operation must restart under a new lease.
    pub(crate) fn check_generation(&self, ino: InodeId, generation: u64) -> Result<()> {
        match self.phase.is_loaded() && self.generation == generation {
            true => Ok(()),
            false => Err(ended_lease(ino)),
        }
    }

    /// Unloads everything that is valid only under a lease.
    pub(crate) fn unload(&mut self) {
        let (unsynced, unsynced_metadata, generation) =
            (self.unsynced, self.unsynced_metadata, self.generation + 1);
        let last_size = self.last_size;
        let unsynced_in = std::mem::take(&mut self.unsynced_layouts);
        let mut failures = std::mem::take(&mut self.flush_failures);
        if self.dirty.is_some() {
            failures.note_dropped();
        }
        *self = Content {
            unsynced,
            unsynced_layouts: unsynced_in,
            unsynced_metadata,
            flush_failures: failures,
            last_size,
            generation,
            ..Content::default()
        };
    }

    /// Whether a change up to `end` can be made inline. A file that already has a layout is being
    /// converted to chunks.
    pub(crate) fn stays_inline(&self, end: u64) -> bool {
        self.inline.is_some() && self.layout.is_none() && end <= self.inline_limit as u64
    }

    /// Records the mode bits that concern writes.
    pub(crate) fn note_mode(&mut self, bits: u32) {
        self.has_suid_sgid = bits & (mode::S_ISUID | mode::S_ISGID) != 0;
    }

    /// Whether the mode may have bits that a write by an unprivileged application clears.
    pub(crate) fn may_have_suid_sgid(&self) -> bool {
        self.has_suid_sgid || !self.phase.is_loaded()
    }

    /// Loads the state of a file that was just created with this content and that no other session
    /// has seen yet, without a request.
    pub(crate) fn load_new(&mut self, attr: &Attr, fresh: NewFile, lease: LeaseMode, content: Bytes) {
        let NewFile { inline_limit, has_no_xattrs, begun } = fresh;
        let is_writer = begun.is_some();
        let (layout, epoch) = begun.map_or((None, 0), |begun| (Some(begun.layout), begun.epoch));
        self.load_info(FileInfo {
            attr: *attr,
            inline: (inline_limit > 0 && !is_writer).then_some(content),
            layout,
            length_bounds: Vec::new(),
            inline_limit,
            epoch,
            truncate_pending: false,
            is_reported: false,
        });
        if is_writer {
            self.on(Event::WriteBegun);
            self.has_only_written_chunks = true;
        }
        self.has_no_xattrs = has_no_xattrs;
        self.lease = lease;
    }

    /// Loads the metadata service's state of the file.
    pub(crate) fn load_info(&mut self, info: FileInfo) {
        self.on(Event::Loaded { truncation_pending: info.truncate_pending });
        self.size = info.attr.size;
        self.layout = info.layout.map(Arc::new);
        self.length_bounds = (!info.length_bounds.is_empty()).then(|| Arc::new(info.length_bounds));
        self.inline = info.inline;
        self.inline_limit = info.inline_limit;
        self.epoch = self.epoch.max(info.epoch);
        self.note_mode(info.attr.mode);
        self.note_times(&info.attr);
    }

    /// Whether the content is in chunk files, and nothing of it with the metadata service.
    pub(crate) fn is_in_chunks(&self) -> bool {
        self.layout.is_some() && self.inline.is_none()
    }

    /// Whether the content is loaded and certain.
    pub(crate) fn is_certain(&self) -> bool {
        self.phase.is_certain()
    }

    /// Whether the service has this session on record as a writer of the chunks.
    pub(crate) fn is_recorded_writer(&self) -> bool {
        self.phase.is_recorded_writer()
    }

    /// Records the outcome of a change of size or inline content under the lease of a generation.
    pub(crate) fn note_outcome(&mut self, ino: InodeId, generation: u64, answer: &Result<MetaReply>) {
        // The service refuses content that is being converted to chunks with this error, and leaves
        // it unchanged.
        let may_be_made = answer.as_ref().is_err_and(|error| error.errno != Errno::ERANGE);
        if may_be_made && self.check_generation(ino, generation).is_ok() {
            self.on(Event::ChangeUnanswered { in_chunks: self.is_in_chunks() });
        }
    }

    /// Records the times that decide whether a read updates the access time.
    pub(crate) fn note_times(&mut self, attr: &Attr) {
        (self.atime, self.last_change) = (attr.atime, attr.mtime.max(attr.ctime));
    }

    /// Whether a read at `now` updates the access time, which is `known` so far; if so, updates it.
    pub(crate) fn update_atime(&mut self, known: Timestamp, now: Timestamp) -> bool {
        self.atime = known;
        let changed =
            self.phase.unreported_change().map_or(self.last_change, |mtime| mtime.max(self.last_change));
        let is_due = self.phase.is_loaded() && types::needs_atime_update(self.atime, changed, now);
        if is_due {
            self.atime = now;
        }
        is_due
    }
}
