//! Journals: a sequence of batches, followed by preallocated zeros.
//!
//! A batch is a start (tag 1, number of items `u32`, sequence number `u64`), its items (tag 2, kind
//! `u8`, compression `u8`, tree `u64`, lengths of key `u16` and value `u32`, stored length of the
//! value `u32`, key, value; or tag 4, tree `u64`) and an end (tag 3, XXH3-64 of the items,
//! `FJL\x03`), little-endian.
//!
//! **Torn or damaged.** The last journal may end in a torn batch. A process's writes reach the
//! kernel in order, so its death leaves the beginning of a batch, followed by zeros. A power
//! failure can lose any part that was not on disk yet. But a disk writes sectors, and an unwritten
//! sector is all zeros here, since the file was preallocated.
//!
//! So a batch is damaged if it is wrong, its end exists, and no whole sector before its end is
//! zeros: then written data has changed, and the journal is refused. Everything else is torn. None
//! of it was acknowledged as synced, because a sync covers everything before it, so it is
//! truncated.
//!
//! Limit: a flipped byte in the last batch of the last journal is taken for a torn end if that
//! batch contains a whole sector of zeros.

use super::{VerifyReport, corrupt, failed, names, open, sync_records};
use crate::KvError;
use rustix::fs::SeekFrom;
use std::fs::OpenOptions;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Suffix of a journal's name, which is a number.
const SUFFIX: &str = ".jnl";

/// Trailer of every batch.
const TRAILER: &[u8] = b"FJL\x03";

/// The smallest unit that a disk writes, in bytes.
const SECTOR_BYTES: usize = 512;

/// The unit in which the kernel writes back, in bytes.
const PAGE_BYTES: usize = 4096;

/// This many zeros at the end of a page mean that the page was written back before its end was
/// filled; records hardly contain as many in a row.
const PAGE_TAIL_BYTES: usize = 16;

/// Largest difference between sequence numbers of successive batches: the engine uses a few itself
/// for every table that it writes.
const MAX_STEP: u64 = 1 << 32;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

/// Kind of compression that means none; fjall compresses large values.
const UNCOMPRESSED: u8 = 0;

const START_BYTES: usize = 13;
const END_BYTES: usize = 13;
const CLEAR_BYTES: usize = 9;

/// A journal on disk.
pub(super) struct Journal {
    pub(super) number: u64,
    path: PathBuf,
    /// Offset of the end of its batches.
    pub(super) end: usize,
    /// A torn batch follows.
    is_torn: bool,
    /// Sequence number of its last batch.
    pub(super) last_seqno: Option<u64>,
}

/// Returns the path of a journal.
pub(super) fn file(path: &Path, number: u64) -> PathBuf {
    path.join(format!("{number}{SUFFIX}"))
}

/// Checks all journals, and that the required ones exist. The torn end of the last one is
/// truncated.
pub(super) fn examine(path: &Path, report: &mut VerifyReport) -> Result<(), KvError> {
    let journals = read_all(path)?;
    sync_records::check(path, &journals)?;
    for Journal { path: journal, end, is_torn, .. } in &journals {
        report.journal_bytes += *end as u64;
        if !is_torn {
            continue;
        }
        tracing::warn!(
            journal = %journal.display(),
            end,
            "a crash has torn the metadata store's journal; its end, which was not synced, is truncated"
        );
        truncate(journal, *end as u64)?;
        report.torn_journals += 1;
    }
    Ok(())
}

/// Reads all journals and changes nothing.
///
/// # Errors
/// A journal that isn't what was written, or that is missing between others.
pub(super) fn read_all(path: &Path) -> Result<Vec<Journal>, KvError> {
    let mut journals = Vec::new();
    for name in names(path)? {
        let Some(number) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else { continue };
        let number: u64 =
            number.parse().map_err(|_| corrupt(&path.join(&name), "a journal's name is a number"))?;
        journals.push((number, path.join(&name)));
    }
    journals.sort();
    // They are numbered without gaps and removed from the oldest on.
    if let Some(gap) = journals.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1) {
        return Err(corrupt(&file(path, gap[0].0 + 1), "it is missing between others"));
    }
    let count = journals.len();
    let mut last_seqno = None;
    let mut found = Vec::with_capacity(count);
    for (number, path) in journals {
        let bytes = used_bytes(&path)?;
        let (end, is_torn) =
            match scan_batches(&bytes, &mut last_seqno).map_err(|cause| corrupt(&path, cause))? {
                End::Clean(end) => (end, false),
                End::Torn(end) => (end, true),
            };
        if is_torn && found.len() + 1 < count {
            let cause = format!("a batch at byte {end} is incomplete, and a later journal follows");
            return Err(corrupt(&path, cause));
        }
        found.push(Journal { number, path, end, is_torn, last_seqno: last_seqno.filter(|_| end > 0) });
    }
    Ok(found)
}

/// Returns the content of a journal without the hole at its end, which was preallocated and reads
/// as zeros.
fn used_bytes(journal: &Path) -> Result<Vec<u8>, KvError> {
    let mut file = open(journal)?;
    let mut read = || -> std::io::Result<Vec<u8>> {
        let (mut end, length) = (0, file.metadata()?.len());
        while end < length {
            let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(end)) else { break };
            end = rustix::fs::seek(&file, SeekFrom::Hole(data))?;
        }
        file.rewind()?;
        let mut bytes = Vec::new();
        (&file).take(end).read_to_end(&mut bytes).map(|_| bytes)
    };
    read().map_err(|error| failed(journal, &error))
}

fn truncate(journal: &Path, end: u64) -> Result<(), KvError> {
    let cut = || -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(journal)?;
        file.set_len(end)?;
        file.sync_all()
    };
    cut().map_err(|error| failed(journal, &error))
}

/// Where the batches end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Only zeros follow.
    Clean(usize),
    /// A torn batch follows.
    Torn(usize),
}

/// Checks the batches one after another. `before`: the sequence number of the last one.
fn scan_batches(bytes: &[u8], last_seqno: &mut Option<u64>) -> Result<End, String> {
    let mut at = 0;
    loop {
        match batch(&bytes[at..]) {
            Ok((length, seqno)) => {
                let fits = |last: u64| seqno > last && seqno - last <= MAX_STEP;
                if let Some(last) = last_seqno.filter(|last| !fits(*last)) {
                    return Err(format!("the batch at byte {at} has number {seqno} after {last}"));
                }
                *last_seqno = Some(seqno);
                at += length;
            }
            Err(_) if is_zero(&bytes[at..]) => return Ok(End::Clean(at)),
            Err(cause) => {
                return match is_torn(bytes, at) {
                    true => Ok(End::Torn(at)),
                    false => Err(format!("the batch at byte {at} is not what was written: {cause}")),
                };
            }
        }
    }
}

/// Returns length and sequence number of the batch at the beginning.
fn batch(bytes: &[u8]) -> Result<(usize, u64), &'static str> {
    let Frame { seqno, items, mut rest } = frame(bytes)?;
    let sum = u64::from_le_bytes(rest.array()?);
    if rest.array::<4>()? != TRAILER {
        return Err("its end is damaged");
    }
    match xxh3_64(items) == sum {
        true => Ok((rest.at, seqno)),
        false => Err("its checksum doesn't match"),
    }
}

/// A batch up to the checksum in its end.
struct Frame<'a> {
    seqno: u64,
    items: &'a [u8],
    /// The checksum is next.
    rest: Cursor<'a>,
}

fn frame(bytes: &[u8]) -> Result<Frame<'_>, &'static str> {
    let mut rest = Cursor { bytes, at: 0 };
    if rest.byte()? != START {
        return Err("it has no start");
    }
    let count = u32::from_le_bytes(rest.array()?);
    let seqno = u64::from_le_bytes(rest.array()?);
    for _ in 0..count {
        match rest.byte()? {
            ITEM => {
                let [_, compression] = rest.array()?;
                rest.skip(8)?;
                let key = u16::from_le_bytes(rest.array()?);
                let value = u32::from_le_bytes(rest.array()?);
                let stored = u32::from_le_bytes(rest.array()?);
                if compression == UNCOMPRESSED && value != stored {
                    return Err("two lengths of a value differ");
                }
                rest.skip(key as usize + stored as usize)?;
            }
            CLEAR => rest.skip(CLEAR_BYTES - 1)?,
            _ => return Err("an item is invalid"),
        }
    }
    let items = &bytes[START_BYTES..rest.at];
    if rest.byte()? != END {
        return Err("it has no end");
    }
    Ok(Frame { seqno, items, rest })
}

/// Checks a fuzz input as it is, and again with corrected checksums, which random changes don't
/// produce. What [`scan_batches`] accepts must be intact.
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut corrected = bytes.to_vec();
    let mut at = 0;
    while let Ok(Frame { items, rest, .. }) = frame(&corrected[at..]) {
        let (sum, place) = (xxh3_64(items), at + rest.at);
        let Some(end) = corrected.get_mut(place..place + END_BYTES - 1) else { break };
        end[..8].copy_from_slice(&sum.to_le_bytes());
        end[8..].copy_from_slice(TRAILER);
        at = place + END_BYTES - 1;
    }
    for bytes in [bytes, &corrected] {
        if let Ok(End::Clean(end) | End::Torn(end)) = scan_batches(bytes, &mut None) {
            assert_eq!(scan_batches(&bytes[..end], &mut None), Ok(End::Clean(end)));
        }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn skip(&mut self, count: usize) -> Result<(), &'static str> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        self.at = end.ok_or("it extends beyond the end of the journal")?;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let from = self.at;
        self.skip(N)?;
        Ok(self.bytes[from..self.at].try_into().expect("as many bytes were skipped"))
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        self.array::<1>().map(|[byte]| byte)
    }
}

/// Returns whether the wrong batch at `at` is torn, judged by the bytes that follow.
fn is_torn(bytes: &[u8], at: usize) -> bool {
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(at, |last| last + 1);
    let rest = &bytes[at..written];
    // Content may resemble an end, so an end counts only if a batch or nothing follows it.
    let is_end = |end: &usize| *end == rest.len() || batch(&bytes[at + end..]).is_ok();
    let ends = rest.windows(END_BYTES).enumerate().filter(|(_, window)| looks_like_end(window));
    match ends.map(|(begin, _)| begin + END_BYTES).find(is_end) {
        Some(end) => has_unwritten(bytes, at, at + end),
        None => true,
    }
}

/// One wrong byte in an end is enough to hide it, so most of an end counts as one.
fn looks_like_end(window: &[u8]) -> bool {
    let trailer = &window[END_BYTES - TRAILER.len()..];
    let matching = trailer.iter().zip(TRAILER).filter(|(a, b)| a == b).count();
    matching == TRAILER.len() || (window[0] == END && matching + 1 >= TRAILER.len())
}

/// Returns whether something between two offsets seems to be unwritten: a whole sector, or the end
/// of a page that was written back when only its beginning was filled.
fn has_unwritten(bytes: &[u8], from: usize, to: usize) -> bool {
    let sectors = from.next_multiple_of(SECTOR_BYTES).min(to);
    let is_end_of_page = |page: &usize| {
        let end = page.checked_sub(PAGE_TAIL_BYTES).filter(|tail| *tail >= from);
        end.is_some_and(|tail| is_zero(&bytes[tail..*page]))
    };
    bytes[sectors..to].chunks_exact(SECTOR_BYTES).any(is_zero)
        || (from.next_multiple_of(PAGE_BYTES)..to).step_by(PAGE_BYTES).any(|page| is_end_of_page(&page))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Returns the length of the batch at the beginning, if it is one.
#[cfg(test)]
pub(super) fn batch_len(bytes: &[u8]) -> Option<usize> {
    batch(bytes).ok().map(|(length, _)| length)
}
