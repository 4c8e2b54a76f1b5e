//! The relation of modes and access control lists.
//!
//! An access ACL that is equivalent to a mode is not stored. A stored one always agrees with the
//! mode: the mode's group bits show its mask.

use crate::acl::{self, Acl};
use crate::attributes;
use crate::record::Inode;
use crate::tx::{Outcome, Tx};
use bytes::Bytes;
use types::{Errno, Error, InodeId, mode};

/// Name of the attribute with an access ACL.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with a directory's default ACL.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// The bits of a mode that an ACL covers.
const RWX: u32 = 0o777;
/// Length of an ACL attribute without entries, which means "none".
const EMPTY_ACL_LEN: usize = 4;

/// Permissions and ACLs that a new inode gets from its directory.
pub(crate) struct Inherited {
    /// Permission bits.
    pub permissions: u32,
    access: Option<Acl>,
    default: Option<Bytes>,
}

/// The permissions of an inode created in a directory: the requested ones without the umask, or as
/// limited by the directory's default ACL.
pub(crate) fn inherit(
    tx: &Tx<'_>,
    dir: InodeId,
    directory: &Inode,
    requested_mode: u32,
    umask: u32,
) -> Outcome<Inherited> {
    let requested_mode = requested_mode & mode::PERMISSIONS;
    if !directory.default_acl {
        return Ok(Inherited { permissions: requested_mode & !(umask & RWX), access: None, default: None });
    }
    let value = attributes::load(tx, dir, directory, DEFAULT_ACL)?.unwrap_or_default();
    let default = parse_stored(dir, &value)?;
    let (granted, access) = acl::inherit(&default, requested_mode & RWX);
    Ok(Inherited { permissions: requested_mode & !RWX | granted & RWX, access, default: Some(value) })
}

/// Stores the inherited ACLs of a new inode. The caller stores the inode.
pub(crate) fn adopt(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, inherited: Inherited) -> Outcome<()> {
    if let Some(access) = inherited.access {
        store_acl(tx, ino, inode, ACCESS_ACL, &access)?;
    }
    if let Some(default) = inherited.default.filter(|_| inode.is_directory()) {
        attributes::store(tx, ino, inode, DEFAULT_ACL, default)?;
        inode.default_acl = true;
    }
    Ok(())
}

/// Sets the permission bits of an inode and updates its access ACL. The caller stores the inode.
pub(crate) fn chmod(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, permissions: u32) -> Outcome<()> {
    inode.mode = inode.mode & mode::S_IFMT | permissions & mode::PERMISSIONS;
    if !inode.access_acl {
        return Ok(());
    }
    let value = attributes::load(tx, ino, inode, ACCESS_ACL)?.unwrap_or_default();
    let mut access = parse_stored(ino, &value)?;
    acl::chmod(&mut access, permissions & RWX);
    store_acl(tx, ino, inode, ACCESS_ACL, &access)
}

/// Sets the access ACL, or removes it for a value without entries or equivalent to a mode, and
/// updates the mode. The caller stores the inode.
pub(crate) fn set_access_acl(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, value: &[u8]) -> Outcome<()> {
    let access = parse_given(value)?;
    if let Some(access) = &access {
        inode.mode = inode.mode & !RWX | access.mode_bits() & RWX;
    }
    match access {
        Some(access) if acl::equivalent_mode(&access).is_none() => {
            store_acl(tx, ino, inode, ACCESS_ACL, &access)
        }
        _ => remove_acl(tx, ino, inode, ACCESS_ACL),
    }
}

/// Sets the default ACL of a directory, or removes it for a value without entries. The caller
/// stores the inode.
pub(crate) fn set_default_acl(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, value: &[u8]) -> Outcome<()> {
    match parse_given(value)? {
        Some(_) if !inode.is_directory() => Err(Errno::EACCES.into()),
        Some(default) => store_acl(tx, ino, inode, DEFAULT_ACL, &default),
        None => remove_acl(tx, ino, inode, DEFAULT_ACL),
    }
}

/// Removes an ACL if it exists; the mode stays. The caller stores the inode.
pub(crate) fn remove_acl(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, name: &[u8]) -> Outcome<()> {
    attributes::discard(tx, ino, inode, name)?;
    *acl_flag(inode, name) = false;
    Ok(())
}

fn store_acl(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, name: &[u8], acl: &Acl) -> Outcome<()> {
    attributes::store(tx, ino, inode, name, acl.to_xattr().into())?;
    *acl_flag(inode, name) = true;
    Ok(())
}

fn acl_flag<'a>(inode: &'a mut Inode, name: &[u8]) -> &'a mut bool {
    if name == ACCESS_ACL { &mut inode.access_acl } else { &mut inode.default_acl }
}

/// The ACL that a caller sets; `None` if it has no entries.
fn parse_given(value: &[u8]) -> Outcome<Option<Acl>> {
    if value.is_empty() || value.len() == EMPTY_ACL_LEN {
        return Ok(None);
    }
    Ok(Some(acl::parse(value)?))
}

pub(crate) fn parse_stored(ino: InodeId, value: &[u8]) -> Outcome<Acl> {
    acl::parse(value).map_err(|_| {
        Error::new(Errno::EIO, format!("a stored access control list of inode {ino} is damaged")).into()
    })
}
