//! `weft entry info`: how a file is stored, or the stripe pattern that a directory gives new files.

use crate::cli::EntryInfoArgs;
use crate::output::{Align, list, os_error, print, print_json, table};
use crate::size::format_size;
use chunkstore::Store;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use types::{ChunkFileId, Errno, Error, GroupId, HashMap, HashSet, Result};

/// Extended attribute in which the mount returns the information.
const ATTRIBUTE: &str = "weft.entry";

/// Longest attribute value that the kernel passes, in bytes (`XATTR_SIZE_MAX`).
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;

/// Shows one file or directory.
pub fn run(args: &EntryInfoArgs) -> Result<()> {
    let value = read_entry_info(&args.path)?;
    if args.json {
        return print_json(&value);
    }
    let entry = serde_json::from_value(value).map_err(|e| invalid_answer(&args.path, &e))?;
    print(&screen(&args.path, &entry));
    Ok(())
}

/// Returns the mount's information about `path`, with the path.
pub fn read_entry_info(path: &Path) -> Result<Value> {
    let mut buffer = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = rustix::fs::getxattr(path, ATTRIBUTE, &mut buffer[..]).map_err(|e| xattr_error(path, e))?;
    let mut value: Value = serde_json::from_slice(&buffer[..length]).map_err(|e| invalid_answer(path, &e))?;
    value["path"] = json!(path.to_string_lossy());
    locate_chunk_files(&mut value);
    Ok(value)
}

/// Replaces the name of each chunk file by its path. The mount doesn't know how targets name their
/// files, and gives only the hexadecimal digits of inode and slot.
fn locate_chunk_files(value: &mut Value) {
    let (mut directories, mut mirrored) = (HashMap::default(), HashSet::default());
    for group in value["layout"]["groups"].as_array().into_iter().flatten() {
        if group["scheme"].as_str().is_some_and(|scheme| scheme != "single") {
            mirrored.extend(group["group"].as_u64());
        }
        for target in group["targets"].as_array().into_iter().flatten() {
            if let (Some(id), Some(path)) = (target["id"].as_u64(), target["path"].as_str()) {
                directories.insert(id, PathBuf::from(path));
            }
        }
    }
    for chunk in value["chunks"].as_array_mut().into_iter().flatten() {
        let name = chunk["chunk_file"].as_str().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let directory = chunk["target"].as_u64().and_then(|id| directories.get(&id));
        let mirrored = chunk["group"].as_u64().filter(|group| mirrored.contains(group));
        if let (Some(directory), Some(name)) = (directory, name) {
            let directory = match mirrored.and_then(|group| u32::try_from(group).ok()) {
                Some(group) => &Store::group_dir(directory, GroupId(group)),
                None => directory,
            };
            chunk["chunk_file"] = json!(Store::chunk_file_path(directory, ChunkFileId(name)));
        }
    }
}

/// Returns the error for a failed call on a path that should be on a weft file system.
pub fn xattr_error(path: &Path, cause: rustix::io::Errno) -> Error {
    use rustix::io::Errno as Os;
    if matches!(cause, Os::NODATA | Os::OPNOTSUPP | Os::NOSYS) {
        return Error::new(Errno::EOPNOTSUPP, format!("{} is not on a weft file system", path.display()))
            .hint("name a path below a mount point; weft status shows it");
    }
    os_error(path.display(), &cause.into())
}

fn invalid_answer(path: &Path, cause: &serde_json::Error) -> Error {
    Error::new(Errno::EPROTO, format!("invalid answer about {}: {cause}", path.display()))
        .hint("command and mounted file system may be of different versions")
}

#[derive(Deserialize)]
struct Entry {
    ino: u64,
    kind: String,
    size: u64,
    blocks: u64,
    partition: u16,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    project: u32,
    pattern: Pattern,
    layout: Option<LayoutInfo>,
    inline: Option<u64>,
    #[serde(default)]
    chunks: Vec<Chunk>,
    #[serde(default)]
    chunks_total: u64,
}

#[derive(Deserialize)]
struct Pattern {
    pool: String,
    scheme: String,
    chunk_size: u64,
    stripe_count: u64,
    inline_limit: u64,
    chooser: String,
}

#[derive(Deserialize)]
struct LayoutInfo {
    chunk_size: u64,
    groups: Vec<GroupInfo>,
}

#[derive(Deserialize)]
struct GroupInfo {
    group: u32,
    /// Mounts of earlier versions omit it: they have only one scheme.
    #[serde(default = "single")]
    scheme: Option<String>,
    #[serde(default)]
    primary: Option<u32>,
    targets: Vec<TargetInfo>,
}

#[derive(Deserialize)]
struct TargetInfo {
    id: u32,
    path: Option<String>,
    /// State of a member of a mirrored group.
    #[serde(default)]
    state: Option<String>,
}

fn single() -> Option<String> {
    Some("single".into())
}

#[derive(Deserialize)]
struct Chunk {
    index: u64,
    offset: u64,
    length: u64,
    group: u32,
    /// Primary of a mirrored group; `None` if no replica is usable.
    target: Option<u32>,
    chunk_file: String,
}

fn screen(path: &Path, entry: &Entry) -> String {
    let pattern = &entry.pattern;
    let words = format!(
        "pool {}, {}, chunk size {}, stripe count {}, inline up to {}, {}",
        pattern.pool,
        pattern.scheme,
        format_size(pattern.chunk_size),
        pattern.stripe_count,
        format_size(pattern.inline_limit),
        pattern.chooser
    );
    let heading = if entry.kind == "directory" { "new files get" } else { "pattern" };
    let flags = if entry.flags.is_empty() { "none".to_string() } else { entry.flags.join(", ") };
    let mut text = list(&[
        ("path", path.display().to_string()),
        ("inode", format!("{} (partition {})", entry.ino, entry.partition)),
        ("kind", entry.kind.clone()),
        ("size", format!("{} ({} bytes)", format_size(entry.size), entry.size)),
        ("allocated", format_size(entry.blocks * 512)),
        ("flags", format!("{flags}; project {}", entry.project)),
        (heading, words),
        ("content", content(entry)),
    ]);
    if let Some(layout) = &entry.layout {
        text += &format!("\n{}", groups_table(layout));
    }
    if !entry.chunks.is_empty() {
        text += &format!("\n{}", chunks_table(&entry.chunks));
        let shown = entry.chunks.len() as u64;
        if entry.chunks_total > shown {
            text += &format!("and {} more chunks\n", entry.chunks_total - shown);
        }
    }
    text
}

fn content(entry: &Entry) -> String {
    match (&entry.layout, entry.inline) {
        (_, Some(bytes)) => format!("inline, {bytes} bytes beside the inode"),
        (Some(layout), None) => format!(
            "{} chunks of {} over {} groups",
            entry.chunks_total,
            format_size(layout.chunk_size),
            layout.groups.len()
        ),
        (None, None) => "none".into(),
    }
}

fn groups_table(layout: &LayoutInfo) -> String {
    let rows = layout.groups.iter().flat_map(|group| {
        let scheme = group.scheme.clone().unwrap_or_else(|| "unknown".into());
        group.targets.iter().map(move |target| {
            let path = target.path.clone().unwrap_or_default();
            let state = state_of(group, target, &scheme);
            [group.group.to_string(), scheme.clone(), target.id.to_string(), state, path]
        })
    });
    let heading = [
        ("GROUP", Align::Right),
        ("SCHEME", Align::Left),
        ("TARGET", Align::Right),
        ("STATE", Align::Left),
        ("PATH", Align::Left),
    ];
    table(heading, &rows.collect::<Vec<_>>())
}

/// Returns the state of a target in its group. The only target of a group has no state.
fn state_of(group: &GroupInfo, target: &TargetInfo, scheme: &str) -> String {
    match &target.state {
        Some(state) if scheme != "single" && group.primary == Some(target.id) => format!("{state}, primary"),
        Some(state) if scheme != "single" => state.clone(),
        _ => "-".into(),
    }
}

fn chunks_table(chunks: &[Chunk]) -> String {
    let row = |chunk: &Chunk| {
        [
            chunk.index.to_string(),
            chunk.offset.to_string(),
            chunk.length.to_string(),
            chunk.group.to_string(),
            chunk.target.map_or_else(|| "-".into(), |target| target.to_string()),
            chunk.chunk_file.clone(),
        ]
    };
    let heading = [
        ("CHUNK", Align::Right),
        ("OFFSET", Align::Right),
        ("LENGTH", Align::Right),
        ("GROUP", Align::Right),
        ("TARGET", Align::Right),
        ("CHUNK FILE", Align::Left),
    ];
    table(heading, &chunks.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(extra: Value) -> Entry {
        let mut value = json!({
            "ino": 1099511627777u64, "kind": "file", "size": 3, "blocks": 8, "partition": 1,
            "pattern": {"pool": "default", "scheme": "single", "chunk_size": 1048576, "stripe_count": 4,
                        "inline_limit": 4096, "chooser": "round-robin"},
            "layout": null, "inline": null, "chunks": [], "chunks_total": 0,
        });
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_small_file_is_inline() {
        let text = screen(Path::new("/m/f"), &entry(json!({ "inline": 3 })));
        assert!(text.contains("content    inline, 3 bytes beside the inode\n"), "{text}");
        assert!(text.contains("chunk size 1 MiB, stripe count 4, inline up to 4 KiB, round-robin"), "{text}");
    }

    #[test]
    fn flags_and_project_are_shown() {
        let text = screen(Path::new("/m/f"), &entry(json!({})));
        assert!(text.contains("flags      none; project 0\n"), "{text}");
        let marked = entry(json!({ "flags": ["append-only", "nodump"], "project": 7 }));
        let text = screen(Path::new("/m/f"), &marked);
        assert!(text.contains("flags      append-only, nodump; project 7\n"), "{text}");
    }

    #[test]
    fn a_large_file_has_chunks() {
        let text = screen(
            Path::new("/m/f"),
            &entry(json!({
                "size": 100u64 << 20,
                "layout": {"chunk_size": 1048576, "groups": [{"group": 3, "targets": [{"id": 3, "path": "/d/t3"}]}]},
                "chunks": [{"index": 0, "offset": 0, "length": 1048576, "group": 3, "target": 3, "chunk_file": "00ab"}],
                "chunks_total": 100,
            })),
        );
        assert!(text.contains("content    100 chunks of 1 MiB over 1 groups\n"), "{text}");
        assert!(text.contains("    3  single       3  -      /d/t3\n"), "{text}");
        assert!(text.ends_with("and 99 more chunks\n"), "{text}");
    }

    #[test]
    fn a_mirrored_file_shows_its_copies() {
        let targets = json!([
            {"id": 3, "path": "/d/t3", "state": "good"}, {"id": 4, "path": "/d/t4", "state": "needs-resync"}
        ]);
        let group = json!({"group": 9, "scheme": "mirror:2", "primary": 3, "targets": targets});
        let chunk = json!({"index": 0, "offset": 0, "length": 3, "group": 9, "target": 3, "chunk_file": "0000000000000001"});
        let mut value = json!({
            "layout": {"chunk_size": 1048576, "groups": [group]}, "chunks": [chunk], "chunks_total": 1,
        });
        locate_chunk_files(&mut value);
        let file = "/d/t3/groups/9/chunks/05/e5/0000000000000001";
        assert_eq!(value["chunks"][0]["chunk_file"], file);
        let text = screen(Path::new("/m/f"), &entry(value));
        assert!(text.contains("    9  mirror:2       3  good, primary  /d/t3\n"), "{text}");
        assert!(text.contains("    9  mirror:2       4  needs-resync   /d/t4\n"), "{text}");
    }

    #[test]
    fn chunk_files_are_located() {
        let mut value = json!({
            "ino": 1,
            "layout": {"groups": [{"group": 3, "targets": [{"id": 7, "path": "/d/t7"}]}]},
            "chunks": [
                {"target": 7, "chunk_file": "0000000000000001"}, {"target": 8, "chunk_file": "kept"},
                {"target": 7, "chunk_file": "0200000000000001"},
            ],
        });
        locate_chunk_files(&mut value);
        assert_eq!(value["chunks"][0]["chunk_file"], "/d/t7/chunks/05/e5/0000000000000001");
        assert_eq!(value["chunks"][1]["chunk_file"], "kept");
        let moved = value["chunks"][2]["chunk_file"].as_str().unwrap();
        assert!(moved.ends_with("/0200000000000001"), "the chunk file of a slot: {moved}");
    }

    #[test]
    fn other_file_systems_are_told_apart() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = read_entry_info(file.path()).unwrap_err();
        assert!(error.message.ends_with("is not on a weft file system"), "{error}");
        let error = read_entry_info(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT);
    }
}
