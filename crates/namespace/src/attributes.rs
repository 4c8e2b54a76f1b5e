//! Extended attributes as they are stored, with the account that an inode keeps of them.
//!
//! The account (bytes of names, bytes of values) lets the limits be checked without reading the
//! other attributes, and a read of an attribute of an inode that has none ends at the inode.

use crate::keys;
use crate::record::{Inode, Xattr};
use crate::tx::{Outcome, Tx};
use bytes::Bytes;
use types::{Errno, InodeId};

/// The longest name of an attribute, in bytes (Linux `XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME: usize = 255;
/// The longest value of an attribute, in bytes (Linux `XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE: usize = 64 * 1024;
/// All names of an inode's attributes with their terminating zeros, in bytes: what `listxattr` can
/// return (Linux `XATTR_LIST_MAX`).
pub const MAX_XATTR_NAMES: u32 = 64 * 1024;
/// All values of an inode's attributes, in bytes. Bounds what the removal of an inode takes.
pub const MAX_XATTR_VALUES: u32 = 256 * 1024;

/// What a program may do that is run from the file (capabilities(7)). Whoever changes the file's
/// content takes it away.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// What a name costs in a list of names.
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

/// Sets an attribute. The caller stores the inode, whose account changes. `ENOSPC` when the inode
/// would have more than [`MAX_XATTR_NAMES`] bytes of names or [`MAX_XATTR_VALUES`] bytes of values.
pub(crate) fn store(
    tx: &mut Tx<'_>,
    ino: InodeId,
    inode: &mut Inode,
    name: &[u8],
    value: Bytes,
) -> Outcome<()> {
    discount(tx, ino, inode, name)?;
    inode.xattr_names += listed_len(name);
    inode.xattr_values += value.len() as u32;
    if inode.xattr_names > MAX_XATTR_NAMES || inode.xattr_values > MAX_XATTR_VALUES {
        return Err(Errno::ENOSPC.into());
    }
    tx.put(keys::xattr(ino, name), &Xattr { value: Some(value) });
    Ok(())
}

/// Removes an attribute if it is there. The caller stores the inode, whose account changes.
pub(crate) fn discard(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, name: &[u8]) -> Outcome<()> {
    if discount(tx, ino, inode, name)? {
        tx.delete(keys::xattr(ino, name));
    }
    Ok(())
}

/// Takes an attribute off the account; false when it isn't there.
fn discount(tx: &Tx<'_>, ino: InodeId, inode: &mut Inode, name: &[u8]) -> Outcome<bool> {
    let Some(old) = load(tx, ino, inode, name)? else {
        return Ok(false);
    };
    inode.xattr_names = inode.xattr_names.saturating_sub(listed_len(name));
    inode.xattr_values = inode.xattr_values.saturating_sub(old.len() as u32);
    Ok(true)
}
