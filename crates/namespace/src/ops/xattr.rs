//! Extended attributes.
//!
//! The kernel checks which attributes a user may see or change. The only check here: `trusted.`
//! names are listed to root only.

use crate::attributes::{self, CAPABILITY, MAX_XATTR_NAME, MAX_XATTR_NAMES, MAX_XATTR_VALUE};
use crate::flags;
use crate::keys::{self, Key};
use crate::permissions::{self, ACCESS_ACL, DEFAULT_ACL};
use crate::record::Inode;
use crate::tx::{Outcome, Tx};
use bytes::Bytes;
use types::{Errno, InodeId, mode};
use wire::{MetaReply, XattrMode};

const TRUSTED: &[u8] = b"trusted.";
const PLAIN_SPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];

/// New value of an attribute, and how to set it.
pub(crate) struct NewValue<'a> {
    pub value: &'a Bytes,
    pub mode: XattrMode,
    /// Drop setgid as well.
    pub kill_sgid: bool,
}

/// Class of an attribute, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Plain,
    AccessAcl,
    DefaultAcl,
}

/// The value of an attribute.
pub(crate) fn get(tx: &Tx<'_>, ino: InodeId, name: &[u8]) -> Outcome<MetaReply> {
    space_of(name)?;
    let inode = tx.inode(ino)?;
    let value = attributes::load(tx, ino, &inode, name)?.ok_or(Errno::ENODATA)?;
    Ok(MetaReply::Bytes(value))
}

/// Sets an attribute. An access control list is set whatever the mode says, as in Linux.
pub(crate) fn set(tx: &mut Tx<'_>, ino: InodeId, name: &[u8], new: NewValue<'_>) -> Outcome<MetaReply> {
    let space = space_of(name)?;
    if new.value.len() > MAX_XATTR_VALUE {
        return Err(Errno::E2BIG.into());
    }
    let mut inode = tx.inode(ino)?;
    flags::may_change((ino, &inode))?;
    match space {
        Space::Plain => set_plain(tx, ino, &mut inode, name, &new)?,
        Space::AccessAcl => {
            check_can_have_acl(&inode)?;
            permissions::set_access_acl(tx, ino, &mut inode, new.value)?;
        }
        Space::DefaultAcl => {
            check_can_have_acl(&inode)?;
            permissions::set_default_acl(tx, ino, &mut inode, new.value)?;
        }
    }
    if new.kill_sgid {
        inode.mode &= !mode::S_ISGID;
    }
    store(tx, ino, inode)
}

fn set_plain(
    tx: &mut Tx<'_>,
    ino: InodeId,
    inode: &mut Inode,
    name: &[u8],
    new: &NewValue<'_>,
) -> Outcome<()> {
    if new.mode != XattrMode::Any {
        let exists = attributes::load(tx, ino, inode, name)?.is_some();
        match new.mode {
            XattrMode::Create if exists => return Err(Errno::EEXIST.into()),
            XattrMode::Replace if !exists => return Err(Errno::ENODATA.into()),
            _ => {}
        }
    }
    attributes::store(tx, ino, inode, name, new.value.clone())
}

/// The names of all attributes.
pub(crate) fn list(tx: &Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    let inode = tx.inode(ino)?;
    if inode.xattr_names == 0 {
        return Ok(MetaReply::Names(Vec::new()));
    }
    let root = tx.env.credentials.uid == 0;
    let pairs = tx.scan(&keys::xattrs_of(ino), MAX_XATTR_NAMES as usize)?;
    let names = pairs.iter().filter_map(|(key, _)| match keys::decode_key(key) {
        Some(Key::Xattr { name, .. }) if root || !name.starts_with(TRUSTED) => Some(name),
        _ => None,
    });
    Ok(MetaReply::Names(names.collect()))
}

/// Removes an attribute. A missing access control list is no error, as on Linux.
pub(crate) fn remove(tx: &mut Tx<'_>, ino: InodeId, name: &[u8]) -> Outcome<MetaReply> {
    let space = space_of(name)?;
    let mut inode = tx.inode(ino)?;
    // Every write removes the file's capabilities.
    if name != CAPABILITY {
        flags::may_change((ino, &inode))?;
    }
    if space == Space::Plain {
        attributes::load(tx, ino, &inode, name)?.ok_or(Errno::ENODATA)?;
        attributes::discard(tx, ino, &mut inode, name)?;
    } else {
        check_can_have_acl(&inode)?;
        permissions::remove_acl(tx, ino, &mut inode, name)?;
    }
    store(tx, ino, inode)
}

fn store(tx: &mut Tx<'_>, ino: InodeId, mut inode: Inode) -> Outcome<MetaReply> {
    inode.touch(tx.env.now);
    tx.put_inode(ino, &inode);
    Ok(MetaReply::Attr(inode.attr(ino)))
}

/// `ERANGE` for a name that is too long, `EINVAL` for one that consists of its prefix only,
/// `EOPNOTSUPP` for an unknown prefix.
fn space_of(name: &[u8]) -> Outcome<Space> {
    if name.len() > MAX_XATTR_NAME {
        return Err(Errno::ERANGE.into());
    }
    if name == ACCESS_ACL {
        return Ok(Space::AccessAcl);
    }
    if name == DEFAULT_ACL {
        return Ok(Space::DefaultAcl);
    }
    let prefix = PLAIN_SPACES.into_iter().find(|prefix| name.starts_with(prefix)).ok_or(Errno::EOPNOTSUPP)?;
    if name.len() == prefix.len() { Err(Errno::EINVAL.into()) } else { Ok(Space::Plain) }
}

/// The mode of a symlink has no meaning, so it has no access control list.
fn check_can_have_acl(inode: &Inode) -> Outcome<()> {
    if inode.mode & mode::S_IFMT == mode::S_IFLNK { Err(Errno::EOPNOTSUPP.into()) } else { Ok(()) }
}
