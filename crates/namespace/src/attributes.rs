//! Stored extended attributes, with the totals that an inode keeps of them.
//!
//! With the totals (bytes of names, bytes of values), limits are checked without reading the other
//! attributes. Reading an attribute of an inode without any needs only the inode.

use crate::keys;
use crate::record::{Inode, Xattr};
use crate::tx::{Outcome, Tx};
use bytes::Bytes;
use types::{Errno, InodeId};

/// The longest name of an attribute, in bytes (Linux `XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME: usize = 255;
/// The longest value of an attribute, in bytes (Linux `XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE: usize = 64 * 1024;
/// All names of an inode's attributes with their terminating zeros, in bytes: the most that
/// `listxattr` can return (Linux `XATTR_LIST_MAX`).
pub const MAX_XATTR_NAMES: u32 = 64 * 1024;
/// All values of an inode's attributes, in bytes. Bounds the work of removing an inode.
pub const MAX_XATTR_VALUES: u32 = 256 * 1024;

/// File capabilities: rights of a process that executes the file (capabilities(7)). Changing the
/// file's content removes them.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Length of a name in a list of names.
fn listed_len(name: &[u8]) -> u32 {
    name.len() as u32 + 1
}

/// The value of an attribute.
pub(crate) fn load(tx: &Tx<'_>, ino: InodeId, inode: &Inode, name: &[u8]) -> Outcome<Option<Bytes>> {
    if inode.xattr_names == 0 {
        return Ok(None);
    }
    let stored = tx.get::<Xattr>(&keys::xattr(ino, name))?;
    Ok(stored.map(|xattr| xattr.value.unwrap_or_default()))
}

/// Sets an attribute. The caller stores the inode, whose totals change. `ENOSPC` if the inode would
/// have more than [`MAX_XATTR_NAMES`] bytes of names or [`MAX_XATTR_VALUES`] bytes of values.
pub(crate) fn store(
    tx: &mut Tx<'_>,
    ino: InodeId,
    inode: &mut Inode,
    name: &[u8],
    value: Bytes,
) -> Outcome<()> {
    subtract(tx, ino, inode, name)?;
    inode.xattr_names += listed_len(name);
    inode.xattr_values += value.len() as u32;
    if inode.xattr_names > MAX_XATTR_NAMES || inode.xattr_values > MAX_XATTR_VALUES {
        return Err(Errno::ENOSPC.into());
    }
    tx.put(keys::xattr(ino, name), &Xattr { value: Some(value) });
    Ok(())
}

/// Removes an attribute if it exists. The caller stores the inode, whose totals change.
pub(crate) fn discard(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, name: &[u8]) -> Outcome<()> {
    if subtract(tx, ino, inode, name)? {
        tx.delete(keys::xattr(ino, name));
    }
    Ok(())
}

/// Subtracts an attribute from the totals; returns false if it doesn't exist.
fn subtract(tx: &Tx<'_>, ino: InodeId, inode: &mut Inode, name: &[u8]) -> Outcome<bool> {
    let Some(old) = load(tx, ino, inode, name)? else {
        return Ok(false);
    };
    inode.xattr_names = inode.xattr_names.saturating_sub(listed_len(name));
    inode.xattr_values = inode.xattr_values.saturating_sub(old.len() as u32);
    Ok(true)
}
