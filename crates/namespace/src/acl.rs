//! POSIX access control lists in the format of Linux's `system.posix_acl_access` and
//! `system.posix_acl_default`.
//!
//! The attribute's value is a version (2) and entries of tag, permissions and id, little-endian
//! (Linux `include/uapi/linux/posix_acl_xattr.h`). Rules follow Linux `fs/posix_acl.c`; each
//! function names its counterpart there. An [`Acl`] is valid by construction: what the rules forbid
//! can't be expressed.

use std::collections::BTreeSet;
use types::Errno;

/// Version of the attribute's format.
const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// The id of an entry without one.
const NO_ID: u32 = u32::MAX;
/// Read, write and execute.
const RWX: u16 = 0o7;
/// Permission bits of a mode that an ACL covers.
const MODE_RWX: u32 = 0o777;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Permissions of a named user or group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Named {
    /// User or group id.
    id: u32,
    permissions: u16,
}

/// A valid access control list. Permissions are sums of read (4), write (2) and execute (1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    /// Of the file's owner.
    owner: u16,
    /// Of named users.
    users: Vec<Named>,
    /// Of the file's group.
    group: u16,
    /// Of named groups.
    groups: Vec<Named>,
    /// Upper bound for named users, the file's group and named groups; always present if there are
    /// named entries.
    mask: Option<u16>,
    /// Of all other users.
    other: u16,
}

/// One entry in its stored form.
#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Entry {
    fn decode(bytes: &[u8]) -> Result<Entry, Errno> {
        let &[t0, t1, p0, p1, i0, i1, i2, i3] = bytes else {
            return Err(Errno::EINVAL);
        };
        let entry = Entry {
            tag: u16::from_le_bytes([t0, t1]),
            permissions: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        };
        if entry.permissions & !RWX != 0 { Err(Errno::EINVAL) } else { Ok(entry) }
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.permissions.to_le_bytes());
        out.extend_from_slice(&self.id.to_le_bytes());
    }
}

/// Reads the entries of a value, in the only valid order.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'_> {
    /// Returns the next entry if it has this tag.
    fn next_if(&mut self, tag: u16) -> Result<Option<Entry>, Errno> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (bytes, rest) = self.rest.split_at_checked(ENTRY_LEN).ok_or(Errno::EINVAL)?;
        let entry = Entry::decode(bytes)?;
        if entry.tag != tag {
            return Ok(None);
        }
        self.rest = rest;
        Ok(Some(entry))
    }

    /// Returns the permissions of the next entry, which must have this tag.
    fn required(&mut self, tag: u16) -> Result<u16, Errno> {
        self.next_if(tag)?.map(|entry| entry.permissions).ok_or(Errno::EINVAL)
    }

    /// Returns all following entries with this tag; ids must be valid and distinct.
    fn named(&mut self, tag: u16) -> Result<Vec<Named>, Errno> {
        let mut named = Vec::new();
        let mut ids = BTreeSet::new();
        while let Some(entry) = self.next_if(tag)? {
            if entry.id == NO_ID || !ids.insert(entry.id) {
                return Err(Errno::EINVAL);
            }
            named.push(Named { id: entry.id, permissions: entry.permissions });
        }
        Ok(named)
    }
}

/// Parses the value of an ACL attribute.
///
/// Errors: `EOPNOTSUPP` for another version; `EINVAL` for a value that is not a valid ACL (Linux
/// `posix_acl_valid`, and the ids of named users and of named groups must be distinct, as POSIX.1e
/// requires). A value without entries, by which a caller of `setxattr` may mean "none", is `EINVAL`
/// too: the kernel turns it into a removal before it calls a file system.
pub fn parse(value: &[u8]) -> Result<Acl, Errno> {
    let (version, rest) = value.split_first_chunk::<HEADER_LEN>().ok_or(Errno::EINVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut entries = Cursor { rest };
    let acl = Acl {
        owner: entries.required(USER_OBJ)?,
        users: entries.named(USER)?,
        group: entries.required(GROUP_OBJ)?,
        groups: entries.named(GROUP)?,
        mask: entries.next_if(MASK)?.map(|entry| entry.permissions),
        other: entries.required(OTHER)?,
    };
    let has_named_entries = !acl.users.is_empty() || !acl.groups.is_empty();
    if !entries.rest.is_empty() || (has_named_entries && acl.mask.is_none()) {
        return Err(Errno::EINVAL);
    }
    Ok(acl)
}

/// The mode equivalent to `acl` (low nine bits), if there is one: an ACL without named entries and
/// mask need not be stored (Linux `posix_acl_equiv_mode`).
pub fn equivalent_mode(acl: &Acl) -> Option<u32> {
    let plain = acl.users.is_empty() && acl.groups.is_empty() && acl.mask.is_none();
    plain.then(|| acl.mode_bits())
}

/// Updates an access ACL for a mode that is being set (Linux `__posix_acl_chmod_masq`): the mode's
/// group bits go to the mask, or without a mask to the file's group.
pub fn chmod(acl: &mut Acl, mode: u32) {
    acl.owner = class(mode, 6);
    *acl.group_class() = class(mode, 3);
    acl.other = class(mode, 0);
}

/// Mode and access ACL of an inode created with `mode` in a directory with the default ACL
/// `default` (Linux `posix_acl_create_masq`); no ACL if the mode is equivalent. The umask doesn't
/// apply. A new directory also gets `default` itself as its default ACL.
pub fn inherit(default: &Acl, mode: u32) -> (u32, Option<Acl>) {
    let mut acl = default.clone();
    acl.owner &= class(mode, 6);
    *acl.group_class() &= class(mode, 3);
    acl.other &= class(mode, 0);
    let mode = mode & !MODE_RWX | acl.mode_bits();
    let stored = equivalent_mode(&acl).is_none().then_some(acl);
    (mode, stored)
}

/// Three permission bits of a mode.
fn class(mode: u32, shift: u32) -> u16 {
    (mode >> shift) as u16 & RWX
}

impl Acl {
    /// The value of the ACL attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let entries = 4 + self.users.len() + self.groups.len();
        let mut out = Vec::with_capacity(HEADER_LEN + entries * ENTRY_LEN);
        let plain = |tag, permissions| Entry { tag, permissions, id: NO_ID };
        let named = |tag, named: &Named| Entry { tag, permissions: named.permissions, id: named.id };

        out.extend_from_slice(&VERSION.to_le_bytes());
        plain(USER_OBJ, self.owner).encode(&mut out);
        self.users.iter().for_each(|user| named(USER, user).encode(&mut out));
        plain(GROUP_OBJ, self.group).encode(&mut out);
        self.groups.iter().for_each(|group| named(GROUP, group).encode(&mut out));
        if let Some(mask) = self.mask {
            plain(MASK, mask).encode(&mut out);
        }
        plain(OTHER, self.other).encode(&mut out);
        out
    }

    /// The low nine bits of the mode of a file with this access ACL: its group bits show the mask,
    /// if there is one.
    pub fn mode_bits(&self) -> u32 {
        let group = self.mask.unwrap_or(self.group);
        (self.owner as u32) << 6 | (group as u32) << 3 | self.other as u32
    }

    /// Whether a user other than the file's owner gets all of `wanted` (Linux
    /// `posix_acl_permission`): by the user's own entry, else by any one of its groups' entries,
    /// else by the entry for others.
    pub fn grants(&self, uid: u32, file_group: u32, is_in: impl Fn(u32) -> bool, wanted: u16) -> bool {
        let has = |permissions: u16| permissions & wanted == wanted;
        let masked = |permissions: u16| has(permissions & self.mask.unwrap_or(RWX));
        if let Some(user) = self.users.iter().find(|user| user.id == uid) {
            return masked(user.permissions);
        }
        let own = is_in(file_group).then_some(self.group);
        let named = self.groups.iter().filter(|group| is_in(group.id)).map(|group| group.permissions);
        let mut groups = own.into_iter().chain(named).peekable();
        match groups.peek() {
            Some(_) => groups.any(masked),
            None => has(self.other),
        }
    }

    /// The permissions that a mode's group bits represent.
    fn group_class(&mut self) -> &mut u16 {
        self.mask.as_mut().unwrap_or(&mut self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes an attribute with these entries of tag, permissions and id.
    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for &(tag, permissions, id) in entries {
            bytes.extend([tag as u8, (tag >> 8) as u8, permissions as u8, (permissions >> 8) as u8]);
            bytes.extend([id as u8, (id >> 8) as u8, (id >> 16) as u8, (id >> 24) as u8]);
        }
        bytes
    }

    fn refusal(entries: &[(u16, u16, u32)]) -> Errno {
        parse(&value(entries)).unwrap_err()
    }

    /// The result of `setfacl -m u:1000:rwx,g:100:r-x` on mode 0640.
    fn named() -> Vec<u8> {
        value(&[(1, 6, NO_ID), (2, 7, 1000), (4, 4, NO_ID), (8, 5, 100), (16, 7, NO_ID), (32, 0, NO_ID)])
    }

    fn plain(owner: u16, group: u16, other: u16) -> Acl {
        Acl { owner, users: vec![], group, groups: vec![], mask: None, other }
    }

    #[test]
    fn golden_bytes() {
        #[rustfmt::skip]
        let bytes = [
            2, 0, 0, 0,
            0x01, 0, 6, 0, 0xff, 0xff, 0xff, 0xff,
            0x02, 0, 7, 0, 0xe8, 0x03, 0, 0,
            0x04, 0, 4, 0, 0xff, 0xff, 0xff, 0xff,
            0x08, 0, 5, 0, 100, 0, 0, 0,
            0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
            0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ];
        assert_eq!(named(), bytes);
        let acl = parse(&bytes).unwrap();
        let expected = Acl {
            owner: 6,
            users: vec![Named { id: 1000, permissions: 7 }],
            group: 4,
            groups: vec![Named { id: 100, permissions: 5 }],
            mask: Some(7),
            other: 0,
        };
        assert_eq!(acl, expected);
        assert_eq!(acl.to_xattr(), bytes);
    }

    #[test]
    fn an_acl_without_names_needs_no_mask_and_may_have_one() {
        let three = value(&[(1, 7, NO_ID), (4, 5, NO_ID), (32, 1, NO_ID)]);
        assert_eq!(parse(&three), Ok(plain(7, 5, 1)));
        let four = value(&[(1, 7, NO_ID), (4, 5, NO_ID), (16, 4, NO_ID), (32, 1, NO_ID)]);
        assert_eq!(parse(&four), Ok(Acl { mask: Some(4), ..plain(7, 5, 1) }));
        assert_eq!(parse(&four).unwrap().to_xattr(), four);
    }

    #[test]
    fn ids_of_unnamed_entries_are_not_looked_at_and_not_kept() {
        let acl = parse(&value(&[(1, 7, 0), (4, 5, 17), (32, 1, 4)])).unwrap();
        assert_eq!(acl.to_xattr(), value(&[(1, 7, NO_ID), (4, 5, NO_ID), (32, 1, NO_ID)]));
    }

    #[test]
    fn named_entries_keep_their_order() {
        let bytes = value(&[
            (1, 6, NO_ID),
            (2, 7, 9),
            (2, 1, 3),
            (4, 4, NO_ID),
            (8, 5, 3),
            (8, 0, 0),
            (16, 7, NO_ID),
            (32, 0, NO_ID),
        ]);
        assert_eq!(parse(&bytes).unwrap().to_xattr(), bytes);
    }

    #[test]
    fn other_versions_are_not_supported() {
        for version in [0u8, 1, 3] {
            let mut bytes = named();
            bytes[0] = version;
            assert_eq!(parse(&bytes), Err(Errno::EOPNOTSUPP));
        }
        let mut bytes = named();
        bytes[3] = 1;
        assert_eq!(parse(&bytes), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn every_cut_is_refused() {
        let bytes = named();
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Err(Errno::EINVAL), "{len} bytes");
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(parse(&longer), Err(Errno::EINVAL));
    }

    #[test]
    fn each_required_entry_is_missed() {
        let entries =
            [(1, 6, NO_ID), (2, 7, 1000), (4, 4, NO_ID), (8, 5, 100), (16, 7, NO_ID), (32, 0, NO_ID)];
        for missing in [0, 2, 4, 5] {
            let mut entries = entries.to_vec();
            entries.remove(missing);
            assert_eq!(refusal(&entries), Errno::EINVAL, "without entry {missing}");
        }
        for optional in [1, 3] {
            let mut entries = entries.to_vec();
            entries.remove(optional);
            assert!(parse(&value(&entries)).is_ok(), "without entry {optional}");
        }
    }

    #[test]
    fn every_entry_is_refused_twice_and_in_another_place() {
        let entries =
            [(1, 6, NO_ID), (2, 7, 1000), (4, 4, NO_ID), (8, 5, 100), (16, 7, NO_ID), (32, 0, NO_ID)];
        for i in 0..entries.len() {
            let mut twice = entries.to_vec();
            twice.insert(i, entries[i]);
            assert_eq!(refusal(&twice), Errno::EINVAL, "entry {i} twice");
            for j in 0..i {
                let mut swapped = entries.to_vec();
                swapped.swap(i, j);
                assert_eq!(refusal(&swapped), Errno::EINVAL, "entries {i} and {j} swapped");
            }
        }
    }

    #[test]
    fn unknown_tags_permissions_and_ids_are_refused() {
        let with = |entry| refusal(&[(1, 6, NO_ID), entry, (4, 4, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)]);
        assert!(
            parse(&value(&[(1, 6, NO_ID), (2, 7, 5), (4, 4, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)])).is_ok()
        );
        assert_eq!(with((2, 8, 5)), Errno::EINVAL);
        assert_eq!(with((2, 0x107, 5)), Errno::EINVAL);
        assert_eq!(with((2, 7, NO_ID)), Errno::EINVAL);
        assert_eq!(with((0x40, 7, 5)), Errno::EINVAL);
        assert_eq!(with((0x102, 7, 5)), Errno::EINVAL);
        assert_eq!(with((0, 7, 5)), Errno::EINVAL);
    }

    #[test]
    fn only_a_plain_acl_is_equivalent_to_a_mode() {
        assert_eq!(equivalent_mode(&plain(7, 5, 1)), Some(0o751));
        assert_eq!(equivalent_mode(&Acl { mask: Some(4), ..plain(7, 5, 1) }), None);
        let acl = parse(&named()).unwrap();
        assert_eq!(equivalent_mode(&acl), None);
        assert_eq!(acl.mode_bits(), 0o670);
    }

    #[test]
    fn chmod_changes_the_mask_and_spares_the_group() {
        let mut acl = parse(&named()).unwrap();
        chmod(&mut acl, 0o100_517);
        assert_eq!((acl.owner, acl.group, acl.mask, acl.other), (5, 4, Some(1), 7));
        assert_eq!(acl.users, [Named { id: 1000, permissions: 7 }]);
        assert_eq!(acl.mode_bits(), 0o517);
        let mut acl = plain(7, 7, 7);
        chmod(&mut acl, 0o4640);
        assert_eq!(acl, plain(6, 4, 0));
    }

    #[test]
    fn chmod_then_mode_bits_gives_the_mode() {
        for mode in 0..=0o777 {
            for mut acl in [plain(1, 2, 3), parse(&named()).unwrap()] {
                chmod(&mut acl, mode);
                assert_eq!(acl.mode_bits(), mode);
            }
        }
    }

    #[test]
    fn inheriting_a_plain_default_leaves_only_a_mode() {
        assert_eq!(inherit(&plain(7, 5, 0), 0o100_666), (0o100_640, None));
        assert_eq!(inherit(&plain(7, 7, 7), 0o041_755), (0o041_755, None));
    }

    #[test]
    fn inheriting_named_entries_cuts_the_mask_and_spares_the_group() {
        let default = parse(&named()).unwrap();
        let (mode, acl) = inherit(&default, 0o102_644);
        let acl = acl.unwrap();
        assert_eq!(mode, 0o102_640);
        assert_eq!((acl.owner, acl.group, acl.mask, acl.other), (6, 4, Some(4), 0));
        assert_eq!((&acl.users, &acl.groups), (&default.users, &default.groups));
    }

    #[test]
    fn inheriting_never_adds_a_permission() {
        let default = parse(&named()).unwrap();
        for mode in 0..=0o777 {
            let (inherited, acl) = inherit(&default, mode);
            assert_eq!(inherited & !mode, 0);
            assert_eq!(inherited & !default.mode_bits(), 0);
            assert_eq!(acl.unwrap().mode_bits(), inherited);
        }
    }
}
