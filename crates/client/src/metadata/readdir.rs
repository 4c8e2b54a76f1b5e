//! Directory listings.

use crate::{Client, unexpected};
use bytes::Bytes;
use types::{Credentials, InodeId, Result};
use wire::{DirEntry, MetaOp, MetaReply};

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
}

impl Client {
    /// Returns about `limit` entries after `cookie` (0 for the start). With `attributes`, the
    /// caller calls [`Client::remember`] for every entry whose attributes it passes to the kernel.
    pub async fn readdir(&self, dir: InodeId, cookie: u64, limit: u32, attributes: bool) -> Result<Listing> {
        self.readdir_for(Credentials::default(), dir, cookie, limit, attributes).await
    }

    /// Like [`Client::readdir`], on behalf of a user.
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
        let answer = self.session.query_as(credentials, op).await?;
        let stamp = answer.stamp;
        match answer.reply {
            MetaReply::Directory { mut entries, end, parent } => {
                for entry in &mut entries {
                    entry.attr = entry.attr.map(|attr| self.inodes.overlay(attr));
                }
                if self.inodes.all_reports() != reports {
                    // A report may have intervened between answer and overlay: the kernel requests
                    // the attributes that it needs.
                    entries.iter_mut().for_each(|entry| entry.attr = None);
                }
                let keeps = |entry: &DirEntry| {
                    let is_whole = self.inodes.unreported_chunks(entry.ino).is_none();
                    is_whole && self.session.leases.is_cacheable(stamp, entry.ino)
                };
                let trusted_attributes =
                    if attributes { entries.iter().map(keeps).collect() } else { Vec::new() };
                let trusted = self.session.leases.is_cacheable(stamp, dir);
                Ok(Listing {
                    entries,
                    end,
                    parent,
                    names_cacheable: trusted,
                    cacheable_attributes: trusted_attributes,
                })
            }
            other => Err(unexpected(other)),
        }
    }
}
