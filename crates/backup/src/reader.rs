//! Reading and verifying a backup.

use crate::error::{Error, Result};
use crate::format::{
    Attached, AttachedHead, BLOCK_HEADER_BYTES, DELETED, FILE, FOOT, FORMAT, Footer, HEAD, Header, KEYS,
    MAGIC, MAX_BODY_BYTES, PUT, block_checksum,
};
use bytes::{Buf, Bytes};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// A key with its value; `None` for a deleted key.
pub type Record = (Bytes, Option<Bytes>);

/// A backup that is being read.
pub struct Reader {
    path: PathBuf,
    file: Box<dyn Read + Send + Sync>,
    head: Header,
    files: Vec<Attached>,
    /// Rest of the block that is being read.
    block: Bytes,
    last_key: Option<Bytes>,
    counts: Footer,
    foot: Option<Footer>,
}

impl Reader {
    /// Opens a backup and reads everything before its keys.
    ///
    /// # Errors
    /// A file that is not a backup, has a newer format, or is damaged in its first part.
    pub fn open(path: &Path) -> Result<Reader> {
        let mut reader = Reader::start(path)?;
        reader.next_block()?;
        Ok(reader)
    }

    /// Returns the header of a backup; nothing else is read.
    pub fn read_header(path: &Path) -> Result<Header> {
        Ok(Reader::start(path)?.head)
    }

    fn start(path: &Path) -> Result<Reader> {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        Reader::start_from(path, Box::new(BufReader::with_capacity(READ_BYTES, file)))
    }

    /// Returns a reader of `file`, with the name `path` in messages.
    pub(crate) fn from_source(path: &Path, file: Box<dyn Read + Send + Sync>) -> Result<Reader> {
        let mut reader = Reader::start_from(path, file)?;
        reader.next_block()?;
        Ok(reader)
    }

    fn start_from(path: &Path, mut file: Box<dyn Read + Send + Sync>) -> Result<Reader> {
        let mut magic = [0; MAGIC.len()];
        let not_a_backup = |cause: &str| Error::NotABackup { path: path.to_path_buf(), cause: cause.into() };
        match file.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => {}
            Ok(()) => return Err(not_a_backup("it has no magic number of a backup")),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(not_a_backup("it is too short"));
            }
            Err(error) => return Err(Error::io("read", path, error)),
        }
        let (kind, body) = read_block(&mut file, path, 0)?;
        if kind != HEAD {
            return Err(Error::damaged(path, "its first block isn't a header"));
        }
        // The format first: a newer header may contain what this version can't read.
        let parsed: serde_json::Value =
            serde_json::from_slice(&body).map_err(|error| Error::damaged(path, error.to_string()))?;
        if let Some(found) =
            parsed.get("format").and_then(|format| format.as_u64()).filter(|format| *format > FORMAT)
        {
            return Err(Error::UnsupportedFormat { path: path.to_path_buf(), found, known: FORMAT });
        }
        let head = serde_json::from_value(parsed).map_err(|error| Error::damaged(path, error.to_string()))?;
        Ok(Reader {
            path: path.to_path_buf(),
            file,
            head,
            files: Vec::new(),
            block: Bytes::new(),
            last_key: None,
            counts: Footer { blocks: 1, ..Footer::default() },
            foot: None,
        })
    }

    /// Returns its header.
    pub fn header(&self) -> &Header {
        &self.head
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the files attached to it.
    pub fn files(&self) -> &[Attached] {
        &self.files
    }

    /// Returns its footer; known when it was read to its end.
    pub fn footer(&self) -> Option<&Footer> {
        self.foot.as_ref()
    }

    /// Returns the next key in ascending order; `None` at the end, when the whole file has been
    /// verified.
    pub fn next_record(&mut self) -> Result<Option<Record>> {
        while self.block.is_empty() {
            if self.foot.is_some() {
                return Ok(None);
            }
            self.next_block()?;
        }
        let record = self.take_record().ok_or_else(|| Error::damaged(&self.path, "a record is truncated"))?;
        if self.last_key.as_ref().is_some_and(|last| *last >= record.0) {
            return Err(Error::damaged(&self.path, "its keys are not in order"));
        }
        self.last_key = Some(record.0.clone());
        match &record.1 {
            Some(_) => self.counts.puts += 1,
            None => self.counts.gone += 1,
        }
        Ok(Some(record))
    }

    fn take_record(&mut self) -> Option<Record> {
        let op = self.block.try_get_u8().ok()?;
        let key = self.block.try_get_u16_le().ok()? as usize;
        let value = self.block.try_get_u32_le().ok()? as usize;
        if self.block.len() < key.checked_add(value)? {
            return None;
        }
        let key = self.block.split_to(key);
        let value = self.block.split_to(value);
        match op {
            PUT => Some((key, Some(value))),
            DELETED if value.is_empty() => Some((key, None)),
            _ => None,
        }
    }

    /// Reads the next block of keys, or the footer.
    fn next_block(&mut self) -> Result<()> {
        loop {
            let (kind, body) = read_block(&mut self.file, &self.path, self.counts.blocks)?;
            match kind {
                FILE if self.counts.puts + self.counts.gone == 0 => {
                    let file = attached(&body)
                        .ok_or_else(|| Error::damaged(&self.path, "a file in it is truncated"))?;
                    self.files.push(file);
                    self.counts.files += 1;
                }
                KEYS if !body.is_empty() => {
                    self.counts.blocks += 1;
                    self.block = body.into();
                    return Ok(());
                }
                FOOT => return self.end(&body),
                _ => return Err(Error::damaged(&self.path, "a block has a kind that isn't allowed here")),
            }
            self.counts.blocks += 1;
        }
    }

    fn end(&mut self, body: &[u8]) -> Result<()> {
        let damaged = |cause: &str| Error::damaged(&self.path, cause);
        let foot: Footer = serde_json::from_slice(body).map_err(|error| damaged(&error.to_string()))?;
        let counts = |foot: &Footer| (foot.blocks, foot.files, foot.puts, foot.gone);
        if counts(&foot) != counts(&self.counts) {
            return Err(damaged("its content doesn't match the counts in its footer"));
        }
        let mut more = [0];
        match self.file.read(&mut more) {
            Ok(0) => {}
            Ok(_) => return Err(damaged("there is data after its footer")),
            Err(error) => return Err(Error::io("read", &self.path, error)),
        }
        self.foot = Some(foot);
        Ok(())
    }
}

fn read_block(file: &mut impl Read, path: &Path, number: u64) -> Result<([u8; 4], Vec<u8>)> {
    let read = |file: &mut dyn Read, into: &mut [u8]| match file.read_exact(into) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(Error::damaged(path, format!("it is truncated in block {number}")))
        }
        Err(error) => Err(Error::io("read", path, error)),
    };
    let mut before = [0; BLOCK_HEADER_BYTES];
    read(file, &mut before)?;
    let kind: [u8; 4] = before[..4].try_into().expect("four bytes");
    let length = u32::from_le_bytes(before[4..].try_into().expect("four bytes")) as usize;
    if length > MAX_BODY_BYTES {
        return Err(Error::damaged(path, format!("block {number} has an invalid length of {length} bytes")));
    }
    // Not allocated before it is read: a damaged length may be large.
    let mut body = Vec::new();
    file.take(length as u64).read_to_end(&mut body).map_err(|error| Error::io("read", path, error))?;
    let mut sum = [0; 4];
    read(file, &mut sum)?;
    if body.len() != length || block_checksum(number, kind, &body) != u32::from_le_bytes(sum) {
        return Err(Error::damaged(path, format!("block {number} doesn't match its checksum")));
    }
    Ok((kind, body))
}

fn attached(body: &[u8]) -> Option<Attached> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    let (head, content) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let head: AttachedHead = serde_json::from_slice(head).ok()?;
    Some(Attached { name: head.name, mode: head.mode, content: content.to_vec() })
}

/// Reads a whole backup without its bases.
///
/// # Errors
/// Any fault of it.
pub fn verify(path: &Path) -> Result<Footer> {
    let mut reader = Reader::open(path)?;
    while reader.next_record()?.is_some() {}
    Ok(reader.foot.expect("it was read to its end"))
}
