//! Directories.

use crate::{Client, unexpected};
use bytes::Bytes;
use types::{Credentials, InodeId, Result};
use wire::{DirEntry, MetaOp, MetaReply};

/// A page of a directory.
pub struct Listing {
    /// Entries without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// No more entries follow.
    pub end: bool,
    /// What `..` names.
    pub parent: InodeId,
    /// Names and their absence may be kept until [`crate::Invalidate`] says otherwise.
    pub trusted: bool,
    /// Whether the same is true of the attributes of each entry; empty for none.
    pub trusted_attributes: Vec<bool>,
}

impl Client {
    /// Entries after `cookie` (0 from the start), about `limit` of them. With `attributes`, the
    /// caller calls [`Client::remember`] for every entry whose attributes it hands to the kernel.
    pub async fn readdir(&self, dir: InodeId, cookie: u64, limit: u32, attributes: bool) -> Result<Listing> {
        self.readdir_for(Credentials::default(), dir, cookie, limit, attributes).await
    }

    /// The same for a user.
    pub async fn readdir_for(
        &self,
        credentials: Credentials,
        dir: InodeId,
        cookie: u64,
        limit: u32,
        attributes: bool,
    ) -> Result<Listing> {
        let reports = self.inodes.all_reports();
        let op = MetaOp::Readdir { dir, cookie, limit, attributes, prefix: Bytes::new() };
        let answer = self.ask_for(credentials, op).await?;
        let asked = answer.asked;
        match answer.reply {
            MetaReply::Directory { mut entries, end, parent } => {
                for entry in &mut entries {
                    entry.attr = entry.attr.map(|attr| self.inodes.overlay(attr));
                }
                if self.inodes.all_reports() != reports {
                    // A report may have slipped between answer and overlay: the kernel asks for
                    // what it needs.
                    entries.iter_mut().for_each(|entry| entry.attr = None);
                }
                let keeps = |entry: &DirEntry| {
                    let is_whole = self.inodes.unreported_chunks(entry.ino).is_none();
                    is_whole && self.leases.may_be_kept(asked, entry.ino)
                };
                let trusted_attributes =
                    if attributes { entries.iter().map(keeps).collect() } else { Vec::new() };
                let trusted = self.leases.may_be_kept(asked, dir);
                Ok(Listing { entries, end, parent, trusted, trusted_attributes })
            }
            other => Err(unexpected(other)),
        }
    }
}
