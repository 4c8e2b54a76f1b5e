//! JSON of `weft entry`: descriptions and changes.

use crate::file::Files;
use crate::file::inode::InodeTable;
use crate::session::Session;
use crate::unexpected;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use types::{
    ByteRange, ClusterMap, Errno, Error, FileKind, Group, InodeFlags, InodeId, Layout, MapHandle, PoolId,
    Result, Scheme, TargetId,
};
use wire::{EntryDescription, MetaOp, MetaReply, Migration, PatternChange};

/// Maximum number of chunks in a description; the rest is only counted.
const CHUNKS_SHOWN: usize = 64;

/// Names of the flags in `weft entry info`.
const FLAGS: [(InodeFlags, &str); 4] = [
    (InodeFlags::IMMUTABLE, "immutable"),
    (InodeFlags::APPEND, "append-only"),
    (InodeFlags::NODUMP, "nodump"),
    (InodeFlags::PROJECT_INHERIT, "project-inherit"),
];

fn flag_names(flags: InodeFlags) -> Vec<&'static str> {
    FLAGS.iter().filter(|(flag, _)| flags.intersects(*flag)).map(|(_, name)| *name).collect()
}

/// Describes inodes.
pub(crate) struct Descriptions {
    pub(crate) session: Arc<Session>,
    pub(crate) map: MapHandle,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) files: Arc<Files>,
}

impl Descriptions {
    /// Returns everything known of an inode: pattern, layout, the location of each chunk.
    pub(crate) async fn describe(&self, ino: InodeId) -> Result<Bytes> {
        let description = match self.session.query(MetaOp::Describe { ino }).await?.reply {
            MetaReply::Description(description) => description,
            other => return Err(unexpected(other)),
        };
        let mut value = self.to_json(*description)?;
        if let Some(layout) = self.inodes.unreported_chunks(ino) {
            let size = value["size"].as_u64().unwrap_or(0);
            value["blocks"] =
                json!(self.files.chunk_files.allocated_estimate(ino, &layout, size).await?.blocks);
        }
        Ok(Bytes::from(value.to_string()))
    }

    fn to_json(&self, description: EntryDescription) -> Result<Value> {
        let attr = self.inodes.overlay(description.attr);
        let pattern = description.pattern;
        let (chunks, chunks_total) = match (&description.layout, description.inline) {
            (Some(layout), None) => self.chunks(attr.ino, layout, attr.size)?,
            _ => (Vec::new(), 0),
        };
        let layout = match &description.layout {
            Some(layout) if description.inline.is_none() => self.layout_json(layout)?,
            _ => Value::Null,
        };
        Ok(json!({
            "ino": attr.ino, "kind": kind_name(attr.kind()), "size": attr.size, "blocks": attr.blocks,
            "partition": attr.ino.partition(), "flags": flag_names(attr.flags), "project": attr.project.0,
            "pattern": {
                "pool": description.pool, "scheme": pattern.scheme, "chunk_size": pattern.chunk_size,
                "stripe_count": pattern.stripe_count, "inline_limit": pattern.inline_limit, "chooser": pattern.chooser,
            },
            "layout": layout, "inline": description.inline, "chunks": chunks, "chunks_total": chunks_total,
        }))
    }

    fn layout_json(&self, layout: &Layout) -> Result<Value> {
        let map = self.map.load();
        let groups = layout.groups.iter().map(|&id| {
            let group = map.group(id);
            let members = group.into_iter().flat_map(|group| group.members_with_states());
            let targets: Vec<Value> = members
                .map(|(id, state)| {
                    let path = map.target(id).map(|target| target.path.clone());
                    json!({ "id": id, "path": path, "state": state })
                })
                .collect();
            let scheme = group.map(|group| group.scheme);
            let pool = group.and_then(|group| pool_name(&map, group.pool));
            json!({ "group": id, "pool": pool, "scheme": scheme, "primary": group.and_then(primary), "targets": targets })
        });
        Ok(json!({ "chunk_size": layout.chunk_size, "groups": groups.collect::<Vec<_>>() }))
    }

    /// Returns the first chunks, and the total number.
    fn chunks(&self, ino: InodeId, layout: &Layout, size: u64) -> Result<(Vec<Value>, u64)> {
        let chunk = layout.chunk_size as u64;
        let map = self.map.load();
        let total = size.div_ceil(chunk);
        let shown = (0..total).take(CHUNKS_SHOWN).map(|index| {
            let range = ByteRange::new(index * chunk, ((index + 1) * chunk).min(size));
            let piece =
                layout::pieces(layout, range).next().expect("a chunk before the end of the file has bytes");
            let group = map.group(piece.group);
            let scheme = group.map_or(layout.scheme, |group| group.scheme);
            let local = layout::member_pieces(scheme, ByteRange::at(piece.local, range.len()))
                .next()
                .expect("a chunk before the end of the file has bytes");
            Ok(json!({
                "index": index, "offset": range.start, "length": range.len(), "group": piece.group,
                "target": group.and_then(primary), "chunk_file": format!("{:016x}", layout.chunk_file(ino, piece.stripe).0),
                "chunk_file_offset": local.offset,
            }))
        });
        Ok((shown.collect::<Result<_>>()?, total))
    }

    /// Returns the progress of a migration as JSON; `null` if the file isn't migrating.
    pub(crate) async fn migration_of(&self, ino: InodeId) -> Result<Bytes> {
        let migration = match self.session.query(MetaOp::MigrationOf { ino }).await?.reply {
            MetaReply::Migration(moving) => moving,
            other => return Err(unexpected(other)),
        };
        let map = self.map.load();
        let to_json = |migration: Box<Migration>| {
            let error = migration.error.map(|error| {
                let errno = wire::error_number(error.errno);
                json!({ "errno": errno, "message": error.message, "hint": error.hint })
            });
            json!({
                "pool": pool_name(&map, migration.pool), "scheme": migration.scheme, "bytes": migration.bytes,
                "bytes_moved": migration.bytes_moved, "given_up": migration.given_up, "error": error,
            })
        };
        Ok(Bytes::from(migration.map_or(Value::Null, to_json).to_string()))
    }
}

fn pool_name(map: &ClusterMap, id: PoolId) -> Option<String> {
    map.pool(id).map(|pool| pool.name.clone())
}

/// Returns the target that serves a group; `None` for a mirrored group without a member in sync.
fn primary(group: &Group) -> Option<TargetId> {
    match group.scheme {
        Scheme::Single => group.members.first().copied(),
        Scheme::Mirror(_) => group.primary(),
    }
}

pub(super) fn parse_change(json: &[u8]) -> Result<PatternChange> {
    let bad = |cause: String| Error::new(Errno::EINVAL, format!("stripe pattern: {cause}"));
    let value: Value = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
    let object = value.as_object().ok_or_else(|| bad("not a JSON object".into()))?;
    let mut change = PatternChange::default();
    for (key, value) in object {
        let number = || value.as_u64().ok_or_else(|| bad(format!("{key} must be a number of 0 or more")));
        match key.as_str() {
            "pool" => change.pool = value.as_str().map(str::to_owned),
            "scheme" => change.scheme = value.as_str().map(str::to_owned),
            "chunk_size" => change.chunk_size = Some(number()?),
            "stripe_count" => change.stripe_count = Some(number()?),
            "inline_limit" => change.inline_limit = Some(number()?),
            "chooser" => {
                let chooser = serde_json::from_value(value.clone());
                change.chooser = Some(chooser.map_err(|_| {
                    bad(format!("chooser {value} is not round-robin, random or capacity-weighted"))
                })?);
            }
            _ => return Err(bad(format!("{key} is unknown"))),
        }
    }
    Ok(change)
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_parsed_and_invalid_input_refused() {
        let change = parse_change(br#"{"chunk_size":65536,"chooser":"random"}"#).unwrap();
        assert_eq!(change.chunk_size, Some(65536));
        assert_eq!(change.chooser, Some(types::Chooser::Random));
        for bad in [&b"[]"[..], b"{", br#"{"chunk_size":"big"}"#, br#"{"size":1}"#, br#"{"chooser":"best"}"#]
        {
            assert_eq!(parse_change(bad).unwrap_err().errno, Errno::EINVAL);
        }
    }
}
