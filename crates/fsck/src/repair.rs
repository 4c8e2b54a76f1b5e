//! Writing repairs of names and records.

use crate::Subject;
use crate::finding::CheckReport;
use crate::names::{Change, Fix};
use crate::tree::metadata_store_error;
use kv::{Batch, Outcome};
use namespace::keys;
use namespace::record::{self, Entry, Inode, PartitionCounters};
use prost::Message;
use types::{Errno, Error, InodeId, Result, mode};

/// Name of the directory for inodes that lost their name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Applies all fixes, each in a commit of its own, and makes them durable.
pub(crate) async fn apply(subject: &Subject<'_>, fixes: &[Fix], report: &mut CheckReport) -> Result<()> {
    // Links into lost+found come last: they change link counts that other fixes set.
    let adds_to_lost_and_found = |fix: &&Fix| matches!(fix.change, Change::NameInLostAndFound { .. });
    for fix in fixes
        .iter()
        .filter(|fix| !adds_to_lost_and_found(fix))
        .chain(fixes.iter().filter(adds_to_lost_and_found))
    {
        let writes = writes(subject, &fix.change).await?;
        commit(subject, writes).await?;
        report.findings[fix.finding].repaired = true;
    }
    subject.metadata.sync().await.map_err(metadata_store_error)
}

type Writes = Vec<(Vec<u8>, Option<bytes::Bytes>)>;

async fn commit(subject: &Subject<'_>, writes: Writes) -> Result<()> {
    let outcome = subject.metadata.commit(Batch { guards: Vec::new(), writes }).await;
    match outcome.map_err(metadata_store_error)? {
        Outcome::Applied => Ok(()),
        other => Err(Error::new(Errno::EIO, format!("a repair was not written: {other:?}"))),
    }
}

async fn writes(subject: &Subject<'_>, change: &Change) -> Result<Writes> {
    Ok(match change {
        Change::Delete(key) => vec![(key.clone(), None)],
        Change::Rekey { name, ino, mode } => {
            let key = keys::entry(name.dir, keys::name_hash(subject.hash_key, &name.name), &name.name);
            vec![(name.key.clone(), None), (key, Some(Entry::new(*ino, *mode).encode_to_vec().into()))]
        }
        Change::Links { ino, nlink } => edit(subject, *ino, |inode| inode.nlink = *nlink).await?,
        Change::Parent { ino, parent } => edit(subject, *ino, |inode| inode.parent = parent.0).await?,
        Change::PartitionCounters { partition, counters } => {
            vec![(keys::partition_counters(*partition).to_vec(), Some(counters.encode_to_vec().into()))]
        }
        Change::NameInLostAndFound { ino, subdirectories } => {
            link_to_lost_and_found(subject, *ino, *subdirectories).await?
        }
    })
}

async fn load(subject: &Subject<'_>, ino: InodeId) -> Result<Inode> {
    let key = keys::inode(ino);
    let value = subject
        .metadata
        .get(&key)
        .await
        .map_err(metadata_store_error)?
        .ok_or_else(|| Error::new(Errno::EIO, format!("inode {ino} vanished during the repair")))?;
    record::decode(&key, value)
}

fn store(ino: InodeId, inode: &Inode) -> (Vec<u8>, Option<bytes::Bytes>) {
    (keys::inode(ino).to_vec(), Some(inode.encode_to_vec().into()))
}

async fn edit(subject: &Subject<'_>, ino: InodeId, change: impl FnOnce(&mut Inode)) -> Result<Writes> {
    let mut inode = load(subject, ino).await?;
    change(&mut inode);
    Ok(vec![store(ino, &inode)])
}

/// Creates an entry for an inode in `/lost+found`, named by the inode number. Creates the directory
/// if it doesn't exist.
async fn link_to_lost_and_found(subject: &Subject<'_>, ino: InodeId, subdirectories: u32) -> Result<Writes> {
    let (dir, mut directory, mut writes) = lost_and_found(subject).await?;
    let mut inode = load(subject, ino).await?;
    if inode.is_directory() {
        inode.parent = dir.0;
        inode.nlink = 2 + subdirectories;
        directory.nlink += 1;
    } else {
        inode.nlink = 1;
    }
    let name = format!("{}", ino.0).into_bytes();
    let key = keys::entry(dir, keys::name_hash(subject.hash_key, &name), &name);
    writes.push((key, Some(Entry::new(ino, inode.mode).encode_to_vec().into())));
    writes.push(store(ino, &inode));
    writes.push(store(dir, &directory));
    Ok(writes)
}

/// Returns the directory, and the writes that create it.
async fn lost_and_found(subject: &Subject<'_>) -> Result<(InodeId, Inode, Writes)> {
    let root_key =
        keys::entry(InodeId::ROOT, keys::name_hash(subject.hash_key, LOST_AND_FOUND), LOST_AND_FOUND);
    if let Some(value) = subject.metadata.get(&root_key).await.map_err(metadata_store_error)? {
        let entry: Entry = record::decode(&root_key, value)?;
        let directory = load(subject, entry.id()).await?;
        if !directory.is_directory() {
            let error = Error::new(
                Errno::ENOTDIR,
                "/lost+found is not a directory; can't move orphaned inodes there",
            );
            return Err(error.hint("rename it and repair again"));
        }
        return Ok((entry.id(), directory, Vec::new()));
    }
    let mut root = load(subject, InodeId::ROOT).await?;
    let partition = InodeId::ROOT.partition();
    let counters_key = keys::partition_counters(partition);
    let next = match subject.metadata.get(&counters_key).await.map_err(metadata_store_error)? {
        Some(value) => record::decode::<PartitionCounters>(&counters_key, value)?,
        None => PartitionCounters { sequence: InodeId::ROOT.sequence() + 1, inodes: Some(0) },
    };
    let dir = InodeId::new(partition, next.sequence);
    let next =
        PartitionCounters { sequence: next.sequence + 1, inodes: next.inodes.map(|inodes| inodes + 1) };
    let directory = Inode {
        mode: mode::S_IFDIR | 0o700,
        nlink: 2,
        parent: InodeId::ROOT.0,
        xattr_names: 0,
        xattr_values: 0,
        default_acl: false,
        flags: 0,
        project: 0,
        access_acl: false,
        ..root.clone()
    };
    root.nlink += 1;
    let writes = vec![
        (root_key, Some(Entry::new(dir, directory.mode).encode_to_vec().into())),
        (counters_key.to_vec(), Some(next.encode_to_vec().into())),
        store(InodeId::ROOT, &root),
    ];
    Ok((dir, directory, writes))
}
