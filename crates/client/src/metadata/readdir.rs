//! Directory listings.

use crate::cache::names::Names;
use crate::file::inode::{InodeTable, ReportCounts};
use crate::session::Session;
use crate::session::leases::{Answer, RequestStamp};
use crate::unexpected;
use types::{FileKind, InodeId, Result, SessionId};
use wire::{DirEntry, MetaReply};

/// A page of a directory.
pub struct Listing {
    /// Entries without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// Whether this is the last page.
    pub end: bool,
    /// The inode of `..`.
    pub parent: InodeId,
    /// The presence and absence of names may be cached until an [`crate::Invalidate`] call.
    pub names_cacheable: bool,
    /// Whether the attributes of each entry may be cached likewise; empty if none were requested.
    pub cacheable_attributes: Vec<bool>,
    /// When which session requested the attributes; `None` if there are none.
    pub requested: Option<(SessionId, RequestStamp)>,
}

impl Listing {
    /// The page behind the last entry of a directory.
    pub(super) fn behind_end(dir: InodeId) -> Listing {
        Listing {
            entries: Vec::new(),
            end: true,
            // Only the first page needs it.
            parent: dir,
            names_cacheable: true,
            cacheable_attributes: Vec::new(),
            requested: None,
        }
    }

    /// Processes the answer to a request for a page. `reports`: the number of reports of all files
    /// before the request.
    pub(super) fn of(
        answer: Answer,
        dir: InodeId,
        attributes: bool,
        reports: ReportCounts,
        (inodes, names, session): (&InodeTable, &Names, &Session),
    ) -> Result<Listing> {
        let (stamp, leases) = (answer.stamp, &session.leases);
        match answer.reply {
            MetaReply::Directory { mut entries, end, parent } => {
                let last = entries.last().map(|entry| entry.cookie);
                inodes.note_listing_end(dir, stamp, last.filter(|_| end));
                for entry in &mut entries {
                    entry.attr = entry.attr.map(|attr| inodes.overlay(attr));
                }
                let now = inodes.all_reports();
                for entry in &mut entries {
                    // A report may have intervened between answer and overlay: the kernel requests
                    // the attributes that it needs.
                    entry.attr = entry.attr.filter(|attr| match attr.kind() {
                        FileKind::Directory => now.directories == reports.directories,
                        _ => now.files == reports.files,
                    });
                }
                let keeps = |entry: &DirEntry| {
                    let is_whole = inodes.unreported_chunks(entry.ino).is_none();
                    is_whole && !names.has_pending_in(entry.ino) && leases.is_cacheable(stamp, entry.ino)
                };
                let trusted_attributes =
                    if attributes { entries.iter().map(keeps).collect() } else { Vec::new() };
                let trusted = leases.is_cacheable(stamp, dir);
                Ok(Listing {
                    entries,
                    end,
                    parent,
                    names_cacheable: trusted,
                    cacheable_attributes: trusted_attributes,
                    requested: attributes.then_some((session.id, stamp)),
                })
            }
            other => Err(unexpected(other)),
        }
    }
}
