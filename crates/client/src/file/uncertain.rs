//! Changes with an uncertain outcome: the metadata service's answer was lost, or came too late.
//!
//! The lease under which such a change was sent is still held, but the state that is loaded under
//! it may be outdated:
//! - *`Truncate` or `WriteInline`.* The client loads size and inline content again before it uses
//!   them, and before it gives the lease back. After a `Truncate`, the service waits for the chunks
//!   to be truncated, and would later truncate them itself, whatever has been written by then. So
//!   the client truncates them to the size that the service reports.
//! - *`EndWrite` at the end of a use.* The service may no longer have the session on record as a
//!   writer of the file. It would then neither accept the next report nor recover what the session
//!   wrote. So the session sends `BeginWrite` again before it changes anything.

use crate::file::Files;
use crate::file::content::phase::Event;
use crate::file::inode::OpenInode;
use crate::{entry, file_info};
use types::Result;
use wire::MetaOp;

impl Files {
    /// Loads uncertain state again. The caller holds the I/O lock exclusively, under a lease that
    /// excludes changes by other sessions.
    pub(crate) async fn reload_uncertain(&self, inode: &OpenInode) -> Result<()> {
        let generation = {
            let content = inode.content.lock();
            if !content.phase.is_uncertain() {
                return Ok(());
            }
            content.generation
        };
        let info = file_info(
            self.session.query(MetaOp::Open { ino: inode.ino, requested_lease: None }).await?.reply,
        )?;
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, generation)?;
        content.load_info(info);
        Ok(())
    }

    /// Sends an `EndWrite`; returns the size that the service has then.
    pub(crate) async fn send_end_write(&self, inode: &OpenInode, generation: u64, op: MetaOp) -> Result<u64> {
        let ends = matches!(op, MetaOp::EndWrite { done: true, .. });
        let answer = self.change_as_client(op).await;
        if ends && answer.is_err() {
            let mut content = inode.content.lock();
            if content.check_generation(inode.ino, generation).is_ok() {
                content.on(Event::EndUnanswered);
            }
        }
        Ok(entry(answer?)?.size)
    }
}
