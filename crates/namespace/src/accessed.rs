//! Access times, which follow reads some time later.

use crate::record::{self, Inode};
use crate::{ReadError, Reader, Writes, keys};
use prost::Message;
use types::{InodeId, Timestamp};

/// The writes that note that a file was read at a time, on a clock that says `now`; none where that
/// isn't worth it.
///
/// Nothing but the access time changes. What was done to the inode after the read stands, above all
/// an access time that was set since.
///
/// # Errors
/// What reading the inode comes to.
pub fn accessed(
    reader: &dyn Reader,
    now: Timestamp,
    (ino, at): (InodeId, Timestamp),
) -> Result<Writes, ReadError> {
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else { return Ok(Writes::new()) };
    let mut inode: Inode = record::decode(&key, value)?;
    let (attr, at) = (inode.attr(ino), at.min(now));
    let is_due = types::is_access_due(attr.atime, attr.mtime.max(attr.ctime), at);
    if at <= attr.ctime || at <= attr.atime || !is_due {
        return Ok(Writes::new());
    }
    inode.atime = Some(at.into());
    Ok(vec![(key.to_vec(), Some(inode.encode_to_vec().into()))])
}
