//! `target.toml`: the identity of the store in a directory.

use crate::error::{Kind, Result, StoreError};
use crate::paths::{CHUNKS, GROUP_SUPERBLOCK, SUPERBLOCK};
use rt::{File, IoBuf, OpenOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use types::{BLOCK_SIZE, GroupId, TargetId, block_sum};

/// The format that this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;
/// Magic of a target's superblock.
const MAGIC: &str = "weft target";
/// Magic of the superblock of a group's store on a target.
const GROUP_MAGIC: &str = "weft group";
/// Name of the last line's key.
const CHECKSUM_KEY: &str = "checksum";

/// A target of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's uuid, as in the cluster's own superblock.
    pub cluster: String,
    /// The target's id within the cluster.
    pub target: TargetId,
}

/// The owner of a store's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) identity: Identity,
    /// The group whose replica the store holds; `None`: chunk files outside of mirrored groups.
    pub(crate) group: Option<GroupId>,
}

impl Owner {
    pub(crate) fn superblock(&self) -> &'static str {
        if self.group.is_some() { GROUP_SUPERBLOCK } else { SUPERBLOCK }
    }

    /// For messages.
    fn described(&self) -> String {
        let Identity { cluster, target } = &self.identity;
        let group = self.group.map_or(String::new(), |group| format!("group {group} on "));
        format!("{group}target {target} of cluster {cluster}")
    }
}

/// The part of the superblock that every version has.
#[derive(Deserialize)]
struct Stem {
    magic: String,
    format: u64,
}

#[derive(Serialize, Deserialize)]
struct Body {
    magic: String,
    format: u64,
    cluster: String,
    target: TargetId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<GroupId>,
}

fn checksum(body: &str) -> String {
    let mut block = [0; BLOCK_SIZE];
    // Longer text can't be a superblock of ours; reading refuses it before.
    let len = body.len().min(BLOCK_SIZE);
    block[..len].copy_from_slice(&body.as_bytes()[..len]);
    format!("{:08x}", block_sum(&block).0)
}

pub(crate) fn render(Owner { identity, group }: &Owner) -> String {
    let (magic, what) = match group {
        None => (MAGIC, "weft storage target"),
        Some(_) => (GROUP_MAGIC, "weft group's store on a target"),
    };
    let body = Body {
        magic: magic.to_string(),
        format: FORMAT_VERSION,
        cluster: identity.cluster.clone(),
        target: identity.target,
        group: *group,
    };
    let body = toml::to_string(&body).expect("strings and numbers always serialize");
    let body = format!("# Superblock of a {what}. Nothing in it may be changed.\n{body}");
    let sum = checksum(&body);
    format!("{body}{CHECKSUM_KEY} = \"{sum}\"\n")
}

/// A parsed superblock.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Parsed {
    Ours(Owner),
    /// Written by a version that this one doesn't know.
    Newer(u64),
    Damaged(String),
}

pub(crate) fn parse(text: &str) -> Parsed {
    let unreadable = |e: toml::de::Error| Parsed::Damaged(format!("it doesn't parse: {}", e.message()));
    let stem: Stem = match toml::from_str(text) {
        Ok(stem) => stem,
        Err(e) => return unreadable(e),
    };
    if stem.magic != MAGIC && stem.magic != GROUP_MAGIC {
        return Parsed::Damaged("it is not weft's".to_string());
    }
    if stem.format > FORMAT_VERSION {
        return Parsed::Newer(stem.format);
    }
    let (body, last) = text.split_at(text.rfind(CHECKSUM_KEY).unwrap_or(text.len()));
    if last != format!("{CHECKSUM_KEY} = \"{}\"\n", checksum(body)) {
        return Parsed::Damaged("its checksum doesn't match".to_string());
    }
    match toml::from_str::<Body>(body) {
        Ok(Body { magic, group, .. }) if (magic == GROUP_MAGIC) != group.is_some() => {
            Parsed::Damaged(format!("a {magic} has no such content"))
        }
        Ok(Body { cluster, target, group, .. }) => {
            Parsed::Ours(Owner { identity: Identity { cluster, target }, group })
        }
        Err(e) => unreadable(e),
    }
}

/// Returns a superblock's text with the matching checksum.
pub(crate) fn with_checksum(text: &str) -> String {
    let body = &text[..text.rfind(CHECKSUM_KEY).unwrap_or(text.len())];
    format!("{body}{CHECKSUM_KEY} = \"{}\"\n", checksum(body))
}

/// Writes the superblock of a new store atomically and durably.
pub(crate) async fn write(dir: &Path, owner: &Owner) -> Result<()> {
    let name = owner.superblock();
    let path = dir.join(name);
    let draft = dir.join(format!("{name}.new"));
    let text = render(owner);
    let write = async {
        let options = OpenOptions { write: true, create: true, truncate: true, ..Default::default() };
        let file = File::open(&draft, options).await?;
        let buf = IoBuf::alloc(text.len());
        buf.copy_from(0, text.as_bytes());
        file.write_at(buf, 0).await?;
        file.sync_data().await?;
        rt::rename(&draft, &path).await?;
        rt::sync_dir(dir).await
    };
    write.await.map_err(|e| StoreError::io(owner.identity.target, "write", &path, e))
}

/// Fails if a directory already holds something that a new target would replace.
pub(crate) async fn require_empty(dir: &Path, identity: &Identity) -> Result<()> {
    let names = match rt::read_dir(dir).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed.map_err(|e| StoreError::io(identity.target, "list", dir, e))?,
    };
    if names.iter().any(|name| name == SUPERBLOCK || name == CHUNKS) {
        return Err(StoreError::new(
            Kind::NotEmpty,
            format!("{} already holds a weft target", dir.display()),
            "choose an empty directory, or remove the old target's content first",
        ));
    }
    Ok(())
}

/// Returns the identity in a directory; `None` when it has no target's superblock. `target` stands
/// for it in messages.
pub(crate) async fn find(dir: &Path, target: TargetId) -> Result<Option<Identity>> {
    Ok(find_owner(&dir.join(SUPERBLOCK), target).await?.map(|owner| owner.identity))
}

/// Whether a directory holds the expected store; false if it holds none. Fails if it holds another.
/// Changes nothing.
pub(crate) async fn holds_store(dir: &Path, expected: &Owner) -> Result<bool> {
    let path = dir.join(expected.superblock());
    match find_owner(&path, expected.identity.target).await? {
        None => Ok(false),
        Some(found) if found == *expected => Ok(true),
        Some(found) => Err(wrong_identity(dir, &found, expected)),
    }
}

async fn find_owner(path: &Path, target: TargetId) -> Result<Option<Owner>> {
    let Some(text) = read(path, target).await? else { return Ok(None) };
    let damaged = |why: String| {
        StoreError::new(
            Kind::Damaged,
            format!("the superblock {} of target {target} is damaged: {why}", path.display()),
            "restore it from a copy, and check the disk",
        )
    };
    let text = String::from_utf8(text).map_err(|_| damaged("it is not text".to_string()))?;
    match parse(&text) {
        Parsed::Ours(found) => Ok(Some(found)),
        Parsed::Damaged(why) => Err(damaged(why)),
        Parsed::Newer(version) => Err(StoreError::new(
            Kind::NewerVersion,
            format!(
                "target {target}: {} has format {version}; this weft reads up to {FORMAT_VERSION}",
                path.display()
            ),
            "use the version of weft that wrote it, or a newer one",
        )),
    }
}

/// Checks that a directory is the expected target. Changes nothing.
pub(crate) async fn check(dir: &Path, expected: &Identity) -> Result<()> {
    if holds_store(dir, &Owner { identity: expected.clone(), group: None }).await? {
        return Ok(());
    }
    Err(StoreError::new(
        Kind::NotATarget,
        format!("{} is not a weft target: it has no {SUPERBLOCK}", dir.display()),
        "check that its file system is mounted, and that the path is right",
    ))
}

fn wrong_identity(dir: &Path, found: &Owner, expected: &Owner) -> StoreError {
    let (dir, found, expected) = (dir.display(), found.described(), expected.described());
    StoreError::new(
        Kind::WrongIdentity,
        format!("{dir} holds {found}, where {expected} should be"),
        "was the target's folder swapped with another's? put each disk back in its place, or correct the path",
    )
}

/// Reads the superblock's bytes; `None` when it doesn't exist.
async fn read(path: &Path, target: TargetId) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path, OpenOptions { read: true, ..Default::default() }).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|e| StoreError::io(target, "open", path, e))?,
    };
    let buf = IoBuf::alloc(BLOCK_SIZE);
    let n = file.read_at(buf.clone(), 0).await.map_err(|e| StoreError::io(target, "read", path, e))?;
    Ok(Some(buf.as_slice()[..n].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(group: Option<GroupId>) -> Owner {
        let cluster = "8f1c0f5e-0000-4000-8000-000000000001".to_string();
        Owner { identity: Identity { cluster, target: TargetId(12) }, group }
    }

    #[test]
    fn the_format_is_frozen() {
        let text = "# Superblock of a weft storage target. Nothing in it may be changed.\n\
             magic = \"weft target\"\nformat = 1\ncluster = \"8f1c0f5e-0000-4000-8000-000000000001\"\ntarget = 12\n";
        assert_eq!(render(&owner(None)), format!("{text}checksum = \"{}\"\n", checksum(text)));
        let text = "# Superblock of a weft group's store on a target. Nothing in it may be changed.\n\
             magic = \"weft group\"\nformat = 1\ncluster = \"8f1c0f5e-0000-4000-8000-000000000001\"\ntarget = 12\ngroup = 7\n";
        let group = owner(Some(GroupId(7)));
        assert_eq!(render(&group), format!("{text}checksum = \"{}\"\n", checksum(text)));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        for owner in [owner(None), owner(Some(GroupId(7)))] {
            let text = render(&owner);
            assert_eq!(parse(&text), Parsed::Ours(owner.clone()));
            for at in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1;
                let changed = String::from_utf8(bytes).expect("flipping the lowest bit keeps ASCII");
                assert_ne!(parse(&changed), Parsed::Ours(owner.clone()), "byte {at}");
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_apart_whatever_else_it_has() {
        assert_eq!(parse("magic = \"weft target\"\nformat = 9\nnovelty = true\n"), Parsed::Newer(9));
    }
}
