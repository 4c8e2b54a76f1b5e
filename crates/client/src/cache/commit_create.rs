//! Commits of asynchronous creates: one command creates the file at the metadata service, with all
//! that the application has made of it.
//!
//! # A first write that is too large for inline content
//!
//! If nothing was written before, the command also begins a write of chunks, and the client then
//! writes the data there. The create isn't finished before: until then, no other task of this session
//! uses the file, and no lease is given back. If the chunks can't be written, the write begins again
//! as one to an existing file: the application has yet to learn its outcome.

use crate::cache::pending_create::{CommitCreate, FirstWrite, PendingCreate, Sealed};
use crate::file::content::NewFile;
use crate::file::inode::OpenInode;
use crate::kernel::page_fill::Bypass;
use crate::session::lease_holder::LocalFuture;
use crate::session::leases::RequestStamp;
use crate::{Client, entry};
use bytes::Bytes;
use types::{Attr, Errno, Error, Result};
use wire::{LeaseMode, MetaOp, PendingFile};

impl CommitCreate for Client {
    fn commit_create<'a>(&'a self, create: &'a PendingCreate) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let outcome = self.execute_create(create).await;
            self.finish_create(create, outcome).await;
        })
    }
}

/// A file that the service has created, or had created before.
struct Created {
    attr: Attr,
    stamp: RequestStamp,
    fresh: Option<NewFile>,
    /// Number of losses of the metadata store before the command.
    losses: u64,
}

impl Client {
    async fn execute_create(&self, create: &PendingCreate) -> Result<()> {
        let Some(Sealed { file, attr: attr_seen, first_write }) = create.sealed() else { return Ok(()) };
        let _in_flight = self.names.begin_create(file.parent, |ino| self.inodes.note_unused(ino));
        let inode = self.inodes.open(file.ino);
        if let (Some(inode), Some(first_write)) = (&inode, &first_write) {
            return Box::pin(self.commit_with_chunks(create, inode, (file, attr_seen, first_write))).await;
        }
        let content = file.content.clone();
        let created = self.send_create(create, file).await?;
        let Some(inode) = inode else { return Ok(()) };
        let differs = attr_seen != created.attr;
        let lease = self.load_created(&inode, created, content);
        if differs || lease.is_none() {
            self.kernel.drop_cached(inode.ino, Some(&inode), Bypass::Once).await;
        }
        Ok(())
    }

    async fn send_create(&self, create: &PendingCreate, file: PendingFile) -> Result<Created> {
        let ino = file.ino;
        let losses = self.session.verifiers.losses();
        let op = MetaOp::CommitCreate { file: Box::new(file) };
        let answer = self.session.change_as(create.credentials, op).await?;
        let (stamp, fresh) = (answer.stamp, NewFile::of(&answer.reply));
        let attr = entry(answer.reply)?;
        if attr.ino != ino {
            return Err(Error::new(
                Errno::EPROTO,
                format!("inode {} was created instead of inode {ino}", attr.ino),
            ));
        }
        self.inodes.note_created_attr(stamp, &attr);
        Ok(Created { attr, stamp, fresh, losses })
    }

    /// Loads the state of a new file. Returns the lease on it.
    fn load_created(&self, inode: &OpenInode, created: Created, content: Bytes) -> Option<LeaseMode> {
        let mut known = inode.content.lock();
        // Checked under this lock, under which the content is unloaded when the lease ends.
        let lease = self.session.leases.lease_covering(created.stamp, inode.ino);
        known.unsynced_metadata.made(created.losses);
        if let (Some(fresh), Some(lease)) = (created.fresh, lease) {
            known.load_new(&created.attr, fresh, lease, content);
        }
        lease
    }

    /// Creates a file whose content goes to chunks, and writes that.
    async fn commit_with_chunks(
        &self,
        create: &PendingCreate,
        inode: &OpenInode,
        (file, attr_seen, first_write): (PendingFile, Attr, &FirstWrite),
    ) -> Result<()> {
        // Taken before the service grants the lease: a recall waits until the content is stored.
        let exclusive = inode.io_lock.write().await;
        let created = self.send_create(create, PendingFile { begins_write: true, ..file }).await?;
        let is_writer = created.fresh.as_ref().is_some_and(NewFile::has_begun_write);
        let differs = attr_seen != created.attr;
        let lease = self.load_created(inode, created, Bytes::new());
        if is_writer && lease == Some(LeaseMode::Write) {
            match self.files.write_first_chunks(inode, first_write).await {
                Ok(()) => create.note_first_write(),
                Err(error) => {
                    tracing::debug!(ino = %inode.ino, %error, "the first chunks of a new file could not be written yet");
                }
            }
        }
        drop(exclusive);
        if differs || lease.is_none() {
            self.kernel.drop_cached(inode.ino, Some(inode), Bypass::Once).await;
        }
        Ok(())
    }

    async fn finish_create(&self, create: &PendingCreate, outcome: Result<()>) {
        let failure = outcome.as_ref().err().cloned();
        self.names.prefixes.record_outcome(&create.possible_name, &outcome);
        create.finish(outcome);
        self.inodes.note_directory_change();
        let Some(inode) = self.names.async_creates.remove(create) else { return };
        match failure {
            // Applications that use the file get the error. All names of the directory are dropped
            // from the kernel's cache, so that they are looked up again.
            Some(error) => {
                let name = String::from_utf8_lossy(&create.file.name).into_owned();
                tracing::error!(
                    ino = %create.file.ino,
                    directory = %create.file.parent,
                    name,
                    hint = "the application gets an error when it closes the file",
                    "an asynchronous create failed, and the new file is lost: {error}"
                );
                self.kernel.drop_cached(create.file.parent, None, Bypass::Once).await;
            }
            None => inode.set_async_create(None),
        }
        self.files.end_use(&inode).await;
    }
}
