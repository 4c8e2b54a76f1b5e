//! The tables of a tree, and the list of them.
//!
//! `current` contains the number of the list (8 bytes), the XXH3-128 of that file (16 bytes) and
//! the kind of the checksum (1 byte, 0), all little-endian. The list is an archive of sections
//! (`sfa`). Its section `tables` contains levels of runs of tables, with the number of each table
//! and the XXH3-128 of its file.

use super::{VerifyDepth, VerifyReport, corrupt, failed, names, open, read};
use crate::KvError;
use std::io::{self, Read};
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// The file that names the list.
pub(super) const CURRENT: &str = "current";

/// Its length.
const CURRENT_BYTES: usize = 25;

/// The only kind of checksum.
const XXH3: u8 = 0;

/// Directory of the tables.
const TABLES: &str = "tables";

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A table in the list.
struct TableRef {
    id: u64,
    sum: u128,
}

/// Returns the error for a tree with content but without a list of tables.
pub(super) fn missing_list_error(tree: &Path) -> KvError {
    corrupt(&tree.join(CURRENT), "it is missing")
}

/// Checks the list of a tree's tables, that the tables exist, and their content as `depth`
/// requires. Returns false for a tree without a list: its creation was interrupted, and it has no
/// content yet.
pub(super) fn examine(tree: &Path, depth: VerifyDepth, report: &mut VerifyReport) -> Result<bool, KvError> {
    if !tree.join(CURRENT).exists() {
        let tables = tree.join(TABLES);
        let has_tables = tables.exists() && !names(&tables)?.is_empty();
        return if has_tables { Err(missing_list_error(tree)) } else { Ok(false) };
    }
    let listed = list(tree)?;
    let mut bytes = 0;
    for table in &listed {
        let path = tree.join(TABLES).join(table.id.to_string());
        bytes += path.metadata().map_err(|error| failed(&path, &error))?.len();
    }
    let reads = match depth {
        VerifyDepth::Everything => true,
        VerifyDepth::UpTo(limit) => bytes <= limit,
    };
    if !reads {
        return Ok(true);
    }
    for table in &listed {
        let path = tree.join(TABLES).join(table.id.to_string());
        if file_checksum(&path)? != table.sum {
            return Err(corrupt(&path, "the table is not what was written (its XXH3-128 differs)"));
        }
    }
    report.table_bytes += bytes;
    Ok(true)
}

fn list(tree: &Path) -> Result<Vec<TableRef>, KvError> {
    let current_path = tree.join(CURRENT);
    let current = read(&current_path)?;
    let Ok(current) = <[u8; CURRENT_BYTES]>::try_from(current.as_slice()) else {
        return Err(corrupt(&current_path, format!("it has {} bytes, not {CURRENT_BYTES}", current.len())));
    };
    let number = u64::from_le_bytes(current[..8].try_into().expect("eight bytes"));
    let sum = u128::from_le_bytes(current[8..24].try_into().expect("sixteen bytes"));
    if current[24] != XXH3 {
        return Err(corrupt(&current_path, format!("it has an unknown kind of checksum, {}", current[24])));
    }
    let path = tree.join(format!("v{number}"));
    let content = match read(&path) {
        Err(KvError::Corrupt { .. }) => {
            return Err(corrupt(&current_path, format!("it names {}, which is missing", path.display())));
        }
        other => other?,
    };
    if xxh3_128(&content) != sum {
        let cause =
            format!("it is not the list that {} names (its XXH3-128 differs)", current_path.display());
        return Err(corrupt(&path, cause));
    }
    read_list(&path).map_err(|cause| corrupt(&path, format!("the list of tables is invalid: {cause}")))
}

/// The file's checksum was right, so an error here means another format.
fn read_list(path: &Path) -> Result<Vec<TableRef>, String> {
    let archive = sfa::Reader::new(path).map_err(|error| format!("{error:?}"))?;
    let section = archive.toc().section(b"tables").ok_or("it has no section \"tables\"")?;
    let mut reader = section.buf_reader(path).map_err(|error| error.to_string())?;
    read_tables(&mut reader).map_err(|error| error.to_string())
}

fn read_tables(reader: &mut impl Read) -> io::Result<Vec<TableRef>> {
    let mut found = Vec::new();
    for _ in 0..number::<1>(reader)?[0] {
        for _ in 0..number::<1>(reader)?[0] {
            for _ in 0..u32::from_le_bytes(number(reader)?) {
                let id = u64::from_le_bytes(number(reader)?);
                if number::<1>(reader)?[0] != XXH3 {
                    return Err(io::Error::other("an unknown kind of checksum"));
                }
                let sum = u128::from_le_bytes(number(reader)?);
                // The sequence number for the whole table.
                number::<8>(reader)?;
                found.push(TableRef { id, sum });
            }
        }
    }
    Ok(found)
}

/// Checks a fuzz input: the section of a list that names tables.
pub(crate) fn fuzz(bytes: &[u8]) {
    /// Bytes of the smallest entry.
    const ENTRY_BYTES: usize = 33;
    if let Ok(found) = read_tables(&mut &*bytes) {
        assert!(found.len() * ENTRY_BYTES <= bytes.len());
    }
}

fn number<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes).map(|()| bytes)
}

fn file_checksum(path: &Path) -> Result<u128, KvError> {
    let mut file = open(path)?;
    let mut hasher = Xxh3Default::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece).map_err(|error| failed(path, &error))? {
            0 => return Ok(hasher.digest128()),
            count => hasher.update(&piece[..count]),
        }
    }
}
