//! The file format of a history: one JSON record per line.

use ::history::Record;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A writer for records from many threads.
pub struct Sink(Mutex<BufWriter<File>>);

impl Sink {
    /// Creates the file.
    pub fn create(path: &Path) -> io::Result<Sink> {
        Ok(Sink(Mutex::new(BufWriter::new(File::create(path)?))))
    }

    /// Appends a record.
    pub fn add(&self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }

    /// Flushes all records to the file.
    pub fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// Reads a history. An incomplete last line is ignored: its writer was killed.
pub fn read(path: &Path) -> Result<Vec<Record>, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut lines = BufReader::new(File::open(path).map_err(|error| at(&error))?);
    let mut records = Vec::new();
    let mut line = String::new();
    while lines.read_line(&mut line).map_err(|error| at(&error))? > 0 {
        if line.ends_with('\n') {
            let record = serde_json::from_str(&line);
            records.push(record.map_err(|error| format!("line {}: {}", records.len() + 1, at(&error)))?);
        }
        line.clear();
    }
    Ok(records)
}
