//! Attributes of inodes: what the metadata service answers, together with what only this session
//! or the chunk files know.

use crate::cache::names::Names;
use crate::entry;
use crate::file::Files;
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::inode::{InodeTable, ReportCounts};
use crate::session::Session;
use crate::session::leases::{Answer, RequestStamp};
use std::ops::Deref;
use std::sync::Arc;
use types::{Attr, Credentials, Errno, FileKind, InodeId, Result, SetAttr};
use wire::MetaOp;

/// Attributes, and whether they may be cached. Uncacheable ones were valid at some time between
/// request and answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedAttr {
    /// The attributes.
    pub attr: Attr,
    /// The attributes may be cached until an [`crate::Invalidate`] call.
    pub cacheable: bool,
    /// The directory entry by which the inode was found or created may be cached likewise.
    pub name_cacheable: bool,
}

impl Deref for CachedAttr {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

/// Finds out the attributes of inodes.
pub(crate) struct Attributes {
    pub(crate) session: Arc<Session>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) names: Arc<Names>,
    pub(crate) files: Arc<Files>,
}

impl Attributes {
    /// Returns the current attributes.
    pub(crate) async fn getattr(&self, ino: InodeId) -> Result<CachedAttr> {
        if let Some(attr) = self.of_pending_create(ino) {
            return Ok(attr);
        }
        if self.names.has_pending_in(ino) {
            Box::pin(self.names.finish_about(ino)).await;
        }
        if let Some((stamp, attr)) = self.names.attributes(&self.session.leases, ino) {
            return Ok(self.known(stamp, ino, attr));
        }
        loop {
            let reports = self.inodes.reports(ino);
            let answer = self.session.query(MetaOp::Getattr { ino }).await?;
            let attr = self.inodes.overlay(entry(answer.reply)?);
            self.inodes.note_flags(attr.ino, answer.stamp, Some(&attr));
            self.inodes.note_directory(&attr);
            if self.inodes.reports(ino) != reports {
                continue;
            }
            let is_cacheable = self.session.leases.is_cacheable(answer.stamp, ino);
            let known = CachedAttr { cacheable: is_cacheable, name_cacheable: is_cacheable, attr };
            if known.cacheable || attr.kind() != FileKind::Regular {
                return Box::pin(self.with_blocks(known)).await;
            }
            let attr = self.files.while_lease_lasts(async || self.with_chunks(attr).await).await?;
            if self.inodes.reports(ino) == reports {
                return Ok(CachedAttr { attr, ..known });
            }
        }
    }

    /// Returns the attributes of a file that the service has yet to get. No other session knows the
    /// file.
    fn of_pending_create(&self, ino: InodeId) -> Option<CachedAttr> {
        if self.names.async_creates.is_idle() {
            return None;
        }
        let attr = self.inodes.open(ino)?.async_create()?.attr()?;
        Some(CachedAttr { attr, cacheable: true, name_cacheable: true })
    }

    /// Sets attributes of a file that the service has yet to get, and returns all of them. `None`
    /// if the service has to do that.
    pub(super) fn set_of_pending_create(
        &self,
        who: Credentials,
        ino: InodeId,
        set: &SetAttr,
    ) -> Option<CachedAttr> {
        if self.names.async_creates.is_idle() {
            return None;
        }
        let attr = self.inodes.open(ino)?.async_create()?.set(who, set)?;
        Some(CachedAttr { attr, cacheable: true, name_cacheable: true })
    }

    /// Returns the attributes of a directory of which only mode, owner and group are known to be
    /// current. The others are those of this session's last change of the directory. The caller
    /// must use only mode, owner and group.
    pub(crate) fn permissions(&self, ino: InodeId) -> Option<CachedAttr> {
        let attr = self.names.permissions(&self.session.leases, ino)?;
        Some(CachedAttr { attr, cacheable: false, name_cacheable: false })
    }

    /// Adds the allocated blocks to the attributes of a file that no other session is writing.
    async fn with_blocks(&self, known: CachedAttr) -> Result<CachedAttr> {
        let Some(layout) = self.inodes.unreported_chunks(known.ino) else { return Ok(known) };
        let blocks = self.files.chunk_files.allocated_estimate(known.ino, &layout, known.size).await?.blocks;
        Ok(CachedAttr { attr: Attr { blocks, ..known.attr }, ..known })
    }

    /// Merges the sizes and times of the chunk files into the attributes of a file that others may
    /// be writing.
    async fn with_chunks(&self, attr: Attr) -> Result<Attr> {
        let open = self.inodes.open(attr.ino).and_then(|open| {
            let content = open.content.lock();
            let known = || (content.under(attr.ino), content.layout.clone(), content.inline.is_some());
            content.phase.is_loaded().then(known)
        });
        let (attr, under, layout, inline) = match open {
            Some((under, layout, inline)) => (attr, under, layout, inline),
            None => {
                let info = match self.files.open_info_once(attr.ino).await {
                    // With squashed users, not every user may open every file. The service's
                    // attributes are returned as they are.
                    Err(error) if error.errno == Errno::EACCES => return Ok(attr),
                    info => info?,
                };
                // The clocks of targets aren't those of the sessions that set times.
                if info.is_reported {
                    return Ok(self.inodes.overlay(info.attr));
                }
                let under = LeaseContext { epoch: info.epoch, ..LeaseContext::without_lease(attr.ino) };
                (self.inodes.overlay(info.attr), under, info.layout.map(Arc::new), info.inline.is_some())
            }
        };
        let Some(layout) = layout.filter(|_| !inline) else { return Ok(attr) };
        let measured = self.files.chunk_files.measure(under, &layout).await?;
        let mut attr = Attr { size: attr.size.max(measured.end), blocks: measured.blocks, ..attr };
        // An mtime that was set explicitly is newer than every earlier write, and its ctime proves
        // that.
        if measured.mtime > attr.ctime {
            (attr.mtime, attr.ctime) = (measured.mtime, measured.mtime);
        }
        Ok(attr)
    }

    /// Counts the kernel reference that a reply adds.
    pub(super) fn referenced(&self, parent: InodeId, answer: Answer) -> Result<CachedAttr> {
        let attr = entry(answer.reply)?;
        self.inodes.remember(&attr);
        Ok(self.known(answer.stamp, parent, self.inodes.overlay(attr)))
    }

    /// Adds to attributes whether they may be cached now. Those of a file with unreported block
    /// counts may not.
    pub(crate) fn known(&self, stamp: RequestStamp, parent: InodeId, attr: Attr) -> CachedAttr {
        let is_whole = self.inodes.unreported_chunks(attr.ino).is_none();
        self.inodes.note_flags(attr.ino, stamp, Some(&attr));
        self.inodes.note_directory(&attr);
        let is_changing = attr.kind() == FileKind::Directory && self.names.has_pending_in(attr.ino);
        CachedAttr {
            attr,
            name_cacheable: self.session.leases.is_cacheable(stamp, parent),
            cacheable: is_whole && !is_changing && self.session.leases.is_cacheable(stamp, attr.ino),
        }
    }

    /// Returns the attributes of another answer, or current ones if a report may have intervened
    /// between that answer and the overlay. Those of a directory are only marked as uncacheable.
    pub(super) async fn current(&self, reports: ReportCounts, known: CachedAttr) -> Result<CachedAttr> {
        let now = self.inodes.all_reports();
        match known.kind() {
            FileKind::Regular if now.files != reports.files => {
                let now = self.getattr(known.ino).await?;
                Ok(CachedAttr { name_cacheable: known.name_cacheable, ..now })
            }
            FileKind::Directory if now.directories != reports.directories => {
                Ok(CachedAttr { cacheable: false, ..known })
            }
            _ => Ok(known),
        }
    }
}
