//! Files in use: open files and their content, from the lease under which it is loaded to the
//! requests to chunk files, and the report of size and times at the end.

pub(crate) mod access;
pub(crate) mod access_time;
pub(crate) mod chunk_files;
pub(crate) mod close;
pub(crate) mod content;
pub(crate) mod exclusive;
mod first_write;
pub(crate) mod flags;
pub(crate) mod handle;
pub(crate) mod in_flight;
pub(crate) mod inode;
pub(crate) mod layout_change;
mod operations;
pub(crate) mod size_recovery;
pub(crate) mod sync;
pub(crate) mod uncertain;
pub(crate) mod write_behind;

use crate::kernel::invalidation::KernelCaches;
use crate::session::Session;
use chunk_files::ChunkFiles;
use inode::InodeTable;
use routing::StorageChannels;
use std::sync::Arc;
use types::MapHandle;
use write_behind::WriteBehind;

/// What files in use need, and the options of the mount for them.
pub(crate) struct FilesOptions {
    pub(crate) session: Arc<Session>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) kernel: Arc<KernelCaches>,
    pub(crate) storage: StorageChannels,
    pub(crate) map: MapHandle,
    pub(crate) server_cache: bool,
    pub(crate) write_behind: bool,
}

/// Files in use: reads and writes of their content, and what the session reports of them.
///
/// It knows nothing of names and directories.
pub(crate) struct Files {
    session: Arc<Session>,
    inodes: Arc<InodeTable>,
    pub(crate) chunk_files: ChunkFiles,
    kernel: Arc<KernelCaches>,
    write_behind: Option<WriteBehind>,
}

impl Files {
    pub(crate) fn new(options: FilesOptions) -> Arc<Files> {
        let FilesOptions { session, inodes, kernel, storage, map, server_cache, write_behind } = options;
        let chunk_files = ChunkFiles::new((session.clone(), inodes.clone()), (storage, map), server_cache);
        let write_behind = write_behind.then(WriteBehind::default);
        Arc::new(Files { session, inodes, chunk_files, kernel, write_behind })
    }

    /// Starts the task that flushes dirty extents, if the mount delays writes.
    pub(crate) fn start_flushes(self: &Arc<Files>) {
        if self.write_behind.is_some() {
            rt::spawn(self.clone().flush_aged());
        }
    }

    /// Starts the tasks that report what only this session knows of closed files.
    pub(crate) fn start_reports(self: &Arc<Files>) {
        rt::spawn(self.clone().report_closed());
        rt::spawn(self.clone().report_accesses());
    }
}
