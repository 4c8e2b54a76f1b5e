//! The first write of a new file: its create has begun a write of chunks.

use crate::cache::pending_create::FirstWrite;
use crate::file::Files;
use crate::file::chunk_files::striping::{ChunkWrite, Chunked};
use crate::file::content::phase::Event;
use crate::file::inode::OpenInode;
use std::pin::pin;
use std::time::Duration;
use types::{ByteRange, Errno, Error, Result};
use wire::LeaseMode;

/// How long targets may take. Until then, other sessions that look into the directory wait.
const TIME_OUT: Duration = Duration::from_secs(1);

impl Files {
    /// Writes to the chunks of an empty file. The caller holds the I/O lock exclusively, and the
    /// file's state has just been loaded under `Write`.
    ///
    /// # Errors
    /// Those of targets, `ETIMEDOUT` if they don't answer soon, and `EndedLease`. Some may have
    /// stored their part.
    pub(crate) async fn write_first_chunks(
        &self,
        inode: &OpenInode,
        FirstWrite { buf, direct }: &FirstWrite,
    ) -> Result<()> {
        let (layout, under) = {
            let content = inode.content.lock();
            let Some(layout) = content.layout.clone() else { return Err(Errno::EINVAL.into()) };
            (layout, content.under(inode.ino))
        };
        let range = ByteRange::at(0, buf.len() as u64);
        let path = self.chunk_files.path_of(*direct, buf.len());
        let how = ChunkWrite { path, durable: false, lease: LeaseMode::Write };
        let writing = pin!(async {
            self.chunk_files.note_unreplicated(&layout).await?;
            self.chunk_files.write_chunks(under, Chunked::unknown(&layout), 0, buf.clone(), how).await
        });
        let _in_flight = inode.in_flight.begin(range).await;
        inode.content.lock().check_generation(inode.ino, under.generation)?;
        let changing = self.chunk_files.change_under_lease(inode, under.generation, false, writing);
        let written = rt::timeout(TIME_OUT, pin!(changing)).await.unwrap_or_else(|| Err(late(inode)));
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, under.generation)?;
        if written.is_err() {
            content.on(Event::ChunksExceedSize);
            return written;
        }
        content.size = range.end;
        content.last_write_end = Some(range.end);
        content.on(Event::Changed { at: rt::now() });
        Ok(())
    }
}

fn late(inode: &OpenInode) -> Error {
    let message = format!("the targets of inode {} don't answer", inode.ino);
    Error::new(Errno::ETIMEDOUT, message).hint("weft status shows targets that don't answer")
}
