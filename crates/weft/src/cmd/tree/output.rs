//! Results of several threads on standard output.

use crate::output::os_error;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use types::Result;

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Standard output. The first failure to write stops the work.
pub struct Output<'a> {
    stop: &'a AtomicBool,
    is_terminal: bool,
    writer: Mutex<Writer>,
}

struct Writer {
    out: BufWriter<Stdout>,
    failure: Option<io::Error>,
}

impl<'a> Output<'a> {
    /// `stop` becomes true when nothing more can be written.
    pub fn new(stop: &'a AtomicBool) -> Output<'a> {
        let writer = Writer { out: BufWriter::with_capacity(BUFFER_BYTES, io::stdout()), failure: None };
        Output { stop, is_terminal: io::stdout().is_terminal(), writer: Mutex::new(writer) }
    }

    /// Bytes of a path as they are, but without control characters on a terminal.
    pub fn path(&self, path: &Path) -> Vec<u8> {
        let bytes = path.as_os_str().as_bytes();
        if !self.is_terminal {
            return bytes.to_vec();
        }
        bytes.iter().map(|byte| if byte.is_ascii_control() { b'?' } else { *byte }).collect()
    }

    /// Writes a line.
    pub fn line(&self, parts: &[&[u8]]) {
        self.record(parts, b"\n");
    }

    /// Writes parts and an end together.
    pub fn record(&self, parts: &[&[u8]], end: &[u8]) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.failure.is_some() {
            return;
        }
        let write = |part: &&[u8]| writer.out.write_all(part);
        if let Err(error) = parts.iter().chain([&end]).try_for_each(write) {
            writer.failure = Some(error);
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The first failure to write, other than a closed pipe: its reader wants no more.
    pub fn end(&self) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = match writer.failure.take() {
            None => writer.out.flush().err(),
            failure => failure,
        };
        match failure {
            None => Ok(()),
            Some(error) if error.kind() == ErrorKind::BrokenPipe => {
                // Not an interruption.
                self.stop.store(false, Ordering::Relaxed);
                Ok(())
            }
            Some(error) => Err(os_error("can't write the results", &error)),
        }
    }
}
