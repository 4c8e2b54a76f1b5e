//! Access times, which clients report some time after the reads.

use crate::record::{self, Inode};
use crate::{ReadError, Reader, Writes, keys};
use prost::Message;
use types::{InodeId, Timestamp};

/// The writes that record an access time, at the current time `now`; none if the update isn't
/// worthwhile.
///
/// Nothing but the access time changes. Later changes of the inode take precedence, above all an
/// access time that was set since.
///
/// # Errors
/// Those of reading the inode.
pub fn access_time_writes(
    reader: &dyn Reader,
    now: Timestamp,
    (ino, at): (InodeId, Timestamp),
) -> Result<Writes, ReadError> {
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else { return Ok(Writes::new()) };
    let mut inode: Inode = record::decode(&key, value)?;
    let (attr, at) = (inode.attr(ino), at.min(now));
    let needs_update = types::needs_atime_update(attr.atime, attr.mtime.max(attr.ctime), at);
    if at <= attr.ctime || at <= attr.atime || !needs_update {
        return Ok(Writes::new());
    }
    inode.atime = Some(at.into());
    Ok(vec![(key.to_vec(), Some(inode.encode_to_vec().into()))])
}
