//! Storage hosts with members of mirrored groups, and the final comparison of their replicas.

use super::node_process::{register_and_follow, storage_channel};
use super::process::{HostsCluster, Service, new_identity, serve};
use crate::cluster::{LOG_BYTES, identity, store_error};
use chunkstore::{IfAbsent, Options, Store};
use net::{Handler, Router};
use node::{Membership, fetch_map, groups_of_node, unexpected_reply};
use rt::{File, IoBuf, OpenOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, ClusterMap, Errno, Group, GroupId, Result, TargetId};
use wire::{MgmtReply, MgmtRequest, StorageReply, StorageRequest};

/// Directory of the target on each host.
const TARGET: &str = "/target";
/// Size of each intent log file of a group in bytes: small, so that it overflows occasionally and a
/// full resync is needed.
const GROUP_LOG_BYTES: u64 = 64 * 1024;

/// The chunk files of mirrored groups on a target, with their content.
pub(super) type Replicas = BTreeMap<(GroupId, ChunkFileId), Vec<u8>>;

impl HostsCluster {
    /// Runs a storage host's process in a cluster with mirrored groups.
    pub(super) async fn serve_mirrored_storage(self, index: usize) -> Result<()> {
        let own = new_identity(&format!("storage host {index}"));
        let ip = self.storage_ips[index];
        let name = format!("storage{index}");
        let member = self.join_cluster(&own, (&name, ip), Service::Storage(index)).await;
        let service = member.service.clone();
        let connect = move |node: &types::Node| storage_channel(node, &own);
        service.serve_groups(groups_of_node(&member, member.map.handle(), connect));
        let handler: Arc<dyn Handler<StorageRequest, StorageReply>> = service.clone();
        let _server = serve(name, ip, Router::new().with(handler))?;
        let store = self.open_target(&member).await?;
        service.add(store)?;
        service.set_targets_complete();
        register_and_follow(&member).await;
        self.mark_registered(index);
        member.spawn_storage();
        std::future::pending().await
    }

    /// Opens the target of a storage host, and creates it if it doesn't exist.
    async fn open_target(&self, member: &Membership) -> Result<Arc<Store>> {
        let dir = Path::new(TARGET);
        let known = Store::identify(dir).await.map_err(store_error)?;
        let own = match known {
            Some(known) => known,
            None => {
                let add = MgmtRequest::AddTarget {
                    node: member.node(),
                    path: TARGET.into(),
                    pool: "default".into(),
                };
                let own = match member.management.call(add, None).await? {
                    MgmtReply::Added { target } => identity(target),
                    other => return Err(unexpected_reply(&other)),
                };
                Store::format_with_log(dir, &own, LOG_BYTES).await.map_err(store_error)?;
                own
            }
        };
        let options = Options {
            reports_differences: self.reports_differences,
            group_log_bytes: GROUP_LOG_BYTES,
            ..Options::default()
        };
        let opened = Store::open(dir, &own, options).await;
        Ok(opened.map_err(store_error)?.0)
    }

    /// Returns management's current map.
    pub(super) async fn map_of_management(self) -> Result<Arc<ClusterMap>> {
        let management = self.management(&new_identity("looking")).ok_or(Errno::ENODEV)?;
        fetch_map(&management).await
    }
}

/// Describes mirrored groups with a member that isn't in sync; `None` if all are in sync.
pub(super) fn describe_out_of_sync(map: &ClusterMap) -> Option<String> {
    let mirrored = |group: &&Group| group.scheme.has_primary() && group.is_degraded();
    let describe = |group: &Group| {
        let member = |(id, state): (TargetId, types::MemberState)| format!("target {id} {}", state.name());
        let members: Vec<String> = group.members_with_states().map(member).collect();
        format!("group {}: {}", group.id, members.join(", "))
    };
    let all: Vec<String> = map.groups.iter().filter(mirrored).map(describe).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Reads the chunk files of mirrored groups from the current host's target, bypassing the services.
pub(super) async fn read_local_replicas() -> Result<(TargetId, Replicas)> {
    let dir = Path::new(TARGET);
    let own = Store::identify(dir).await.map_err(store_error)?.ok_or(Errno::ENODEV)?;
    let mut replicas = Replicas::new();
    for group in Store::groups_on(dir).await.map_err(store_error)? {
        let mut folders = vec![Store::group_dir(dir, group).join("chunks")];
        while let Some(folder) = folders.pop() {
            for name in rt::read_dir(&folder).await.map_err(failed)? {
                let path = folder.join(&name);
                if rt::read_dir(&path).await.is_ok() {
                    folders.push(path);
                } else if let Some(ino) = chunk_inode(&path) {
                    replicas.insert((group, ino), content(&path).await.map_err(failed)?);
                }
            }
        }
    }
    Ok((own.target, replicas))
}

/// Returns checksum mismatches in mirrored groups on the current host. Its process isn't running.
pub(super) async fn local_checksum_mismatches() -> Result<Vec<String>> {
    let dir = Path::new(TARGET);
    let own = Store::identify(dir).await.map_err(store_error)?.ok_or(Errno::ENODEV)?;
    let (target, _report) = Store::open(dir, &own, Options::default()).await.map_err(store_error)?;
    let mut wrong = Vec::new();
    for group in Store::groups_on(dir).await.map_err(store_error)? {
        let opened = Store::open_group(&target, group, IfAbsent::Leave).await.map_err(store_error)?;
        let Some((store, _report)) = opened else { continue };
        for ino in store.list().await.map_err(store_error)? {
            let ranges = store.verify(ino).await.map_err(store_error)?;
            let describe = |range: &ByteRange| {
                format!("group {group}, inode {:x}, bytes {} to {}", ino.0, range.start, range.end)
            };
            wrong.extend(ranges.iter().map(describe));
        }
    }
    Ok(wrong)
}

/// Returns the inode of a chunk file; `None` for other files.
fn chunk_inode(path: &Path) -> Option<ChunkFileId> {
    let name = path.file_name()?.to_str()?;
    u64::from_str_radix(name, 16).ok().map(ChunkFileId)
}

async fn content(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path, OpenOptions { read: true, ..OpenOptions::default() }).await?;
    let len = file.stat().await?.len as usize;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let buf = IoBuf::alloc((len - bytes.len()).min(1 << 20));
        let read = file.read_at(buf.clone(), bytes.len() as u64).await?;
        if read == 0 {
            break;
        }
        bytes.extend_from_slice(&buf.as_slice()[..read]);
    }
    Ok(bytes)
}

fn failed(error: std::io::Error) -> types::Error {
    types::Error::new(Errno::EIO, error.to_string())
}

/// Compares the replicas of all groups in a map. Returns the number of chunk files.
pub(super) fn compare(map: &ClusterMap, replicas: &BTreeMap<TargetId, Replicas>) -> Result<u64, String> {
    let mut files = 0;
    for group in map.groups.iter().filter(|group| group.scheme.has_primary()) {
        let of = |target: &TargetId| -> BTreeMap<ChunkFileId, &Vec<u8>> {
            let all = replicas.get(target).into_iter().flatten();
            all.filter(|((id, _), _)| *id == group.id).map(|((_, ino), bytes)| (*ino, bytes)).collect()
        };
        let Some((first, others)) = group.members.split_first() else { continue };
        let one = of(first);
        files += one.len() as u64;
        for target in others {
            let other = of(target);
            let context = format!("group {}, targets {first} and {target}", group.id);
            if !one.keys().eq(other.keys()) {
                let names = |files: &BTreeMap<ChunkFileId, &Vec<u8>>| -> Vec<u64> {
                    files.keys().map(|ino| ino.0).collect()
                };
                return Err(format!(
                    "{context}: the files differ: {:x?} and {:x?}",
                    names(&one),
                    names(&other)
                ));
            }
            for (ino, bytes) in &one {
                differ(bytes, other[ino]).map_err(|how| format!("{context}, inode {:x}: {how}", ino.0))?;
            }
        }
    }
    Ok(files)
}

fn differ(one: &[u8], other: &[u8]) -> Result<(), String> {
    if one.len() != other.len() {
        return Err(format!("lengths {} and {}", one.len(), other.len()));
    }
    match one.iter().zip(other).position(|(a, b)| a != b) {
        Some(at) => Err(format!("byte {at} differs: {} and {}", one[at], other[at])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{PoolId, Scheme};

    #[test]
    fn differing_replicas_are_reported() {
        let group = Group {
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(1), TargetId(2)],
            ..Group::single(GroupId(3), PoolId(1), TargetId(1))
        };
        let map = ClusterMap { groups: vec![group], ..ClusterMap::default() };
        let file = |bytes: &[u8]| Replicas::from([((GroupId(3), ChunkFileId(9)), bytes.to_vec())]);
        let judge = |one: Replicas, other: Replicas| {
            compare(&map, &BTreeMap::from([(TargetId(1), one), (TargetId(2), other)]))
        };
        assert_eq!(judge(file(b"ab"), file(b"ab")), Ok(1));
        assert!(judge(file(b"ab"), file(b"ac")).unwrap_err().contains("byte 1"));
        assert!(judge(file(b"ab"), file(b"a")).unwrap_err().contains("lengths 2 and 1"));
        assert!(judge(file(b"ab"), Replicas::new()).unwrap_err().contains("the files differ"));
    }
}
