//! The destination of the log: standard error, or a file that is rotated by size.
//!
//! Invariants: no call fails or panics; a log file and its predecessor take at most twice
//! [`MAX_LOG_BYTES`]; the next written line counts the lost ones.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest log file, in bytes: it is rotated before that, and one old log is retained.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Backoff before a log file is opened again.
const REOPEN: Duration = Duration::from_secs(10);

/// Writes whole lines.
pub struct Sink {
    out: Out,
    /// Lines that could not be written since the last written one.
    lost: u64,
    /// Cause of the loss.
    cause: String,
    /// Whether the last line was written incompletely.
    is_incomplete: bool,
}

enum Out {
    Stderr,
    File(LogFile),
}

impl Sink {
    /// Creates a sink for standard error.
    pub const fn stderr() -> Sink {
        Sink { out: Out::Stderr, lost: 0, cause: String::new(), is_incomplete: false }
    }

    /// Redirects lines to the end of a file from now on. `attach` gets each file that is opened for
    /// it, or the null device if that fails.
    pub fn redirect(&mut self, path: &Path, attach: fn(&File)) {
        self.out = Out::File(LogFile::new(path, MAX_LOG_BYTES, attach));
        self.is_incomplete = false;
    }

    /// Writes a line, or counts it as lost.
    pub fn put(&mut self, line: &[u8], now: Instant) {
        let mut text = Vec::with_capacity(line.len());
        if self.is_incomplete {
            text.push(b'\n');
        }
        if self.lost > 0 {
            // Writing to a vector doesn't fail.
            let _ = writeln!(text, "{} log lines before this one were lost: {}", self.lost, self.cause);
        }
        text.extend_from_slice(line);
        let (written, outcome) = match &mut self.out {
            Out::Stderr => write(&mut io::stderr().lock(), &text),
            Out::File(file) => file.put(&text, now),
        };
        match outcome {
            Ok(()) => (self.lost, self.is_incomplete) = (0, false),
            Err(error) => {
                self.lost += 1;
                self.cause = error.to_string();
                self.is_incomplete |= written > 0;
            }
        }
    }
}

/// Returns the number of bytes written, and the error that stopped the write.
fn write(out: &mut impl Write, text: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < text.len() {
        match out.write(&text[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

struct LogFile {
    path: PathBuf,
    max_bytes: u64,
    attach: fn(&File),
    state: State,
}

enum State {
    /// `bytes`: its length; `None` for a device, which is never rotated.
    Open { file: File, bytes: Option<u64> },
    /// The file could not be opened; `retry`: when to try again.
    Closed { errno: i32, retry: Option<Instant> },
}

impl LogFile {
    fn new(path: &Path, max_bytes: u64, attach: fn(&File)) -> LogFile {
        let state = State::Closed { errno: 0, retry: None };
        let mut file = LogFile { path: path.to_path_buf(), max_bytes, attach, state };
        // At once, because a library may print before the first log line.
        file.open(None);
        file
    }

    fn put(&mut self, text: &[u8], now: Instant) -> (usize, io::Result<()>) {
        match &self.state {
            State::Closed { retry, .. } if retry.is_none_or(|retry| retry <= now) => self.open(Some(now)),
            State::Open { bytes: Some(bytes), .. }
                if *bytes > 0 && bytes + text.len() as u64 > self.max_bytes =>
            {
                self.rotate(now);
            }
            _ => {}
        }
        match &mut self.state {
            State::Open { file, bytes } => {
                let (written, outcome) = write(file, text);
                *bytes = bytes.map(|bytes| bytes + written as u64);
                (written, outcome)
            }
            State::Closed { errno, .. } => (0, Err(io::Error::from_raw_os_error(*errno))),
        }
    }

    /// Renames the file and opens an empty one. If the rename fails, the file is truncated: the log
    /// is bounded in either case.
    fn rotate(&mut self, now: Instant) {
        if fs::rename(&self.path, previous_log(&self.path)).is_ok() {
            return self.open(Some(now));
        }
        if let State::Open { file, bytes } = &mut self.state
            && file.set_len(0).is_ok()
        {
            *bytes = Some(0);
        }
    }

    fn open(&mut self, now: Option<Instant>) {
        match open(&self.path) {
            Ok((path, file, bytes)) => {
                (self.attach)(&file);
                (self.path, self.state) = (path, State::Open { file, bytes });
            }
            Err(error) => {
                if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
                    (self.attach)(&null);
                }
                let errno = error.raw_os_error().unwrap_or(0);
                self.state = State::Closed { errno, retry: now.map(|now| now + REOPEN) };
            }
        }
    }
}

/// Opens a log at its end. The returned path has no links, so renaming it renames the log.
fn open(path: &Path) -> io::Result<(PathBuf, File, Option<u64>)> {
    // Only the owner may read what the log contains: paths, clients, addresses.
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let path = path.canonicalize()?;
    let meta = file.metadata()?;
    Ok((path, file, meta.is_file().then_some(meta.len())))
}

/// Returns the path of the previous log.
fn previous_log(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(path: &Path, max_bytes: u64) -> Sink {
        Sink { out: Out::File(LogFile::new(path, max_bytes, |_| {})), ..Sink::stderr() }
    }

    #[test]
    fn a_log_is_rotated_while_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.log");
        let mut sink = sink(&path, 100);
        for number in 100..150 {
            sink.put(format!("line {number}\n").as_bytes(), Instant::now());
        }
        let (new, old) =
            (fs::read_to_string(&path).unwrap(), fs::read_to_string(previous_log(&path)).unwrap());
        assert!(new.len() <= 100 && old.len() <= 100, "{} and {}", new.len(), old.len());
        assert!(new.ends_with("line 149\n"), "{new}");
        assert!((old + &new).contains("line 145\nline 146\nline 147\n"), "no line is lost between them");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn an_existing_log_is_continued_and_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.log");
        fs::write(&path, "x".repeat(200)).unwrap();
        let mut sink = sink(&path, 100);
        sink.put(b"line\n", Instant::now());
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n");
        assert_eq!(fs::metadata(previous_log(&path)).unwrap().len(), 200);
    }

    #[test]
    fn a_log_behind_a_link_is_rotated_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("real.log"), dir.path().join("weft.log"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut sink = sink(&link, 10);
        for line in [b"line 1\n", b"line 2\n"] {
            sink.put(line, Instant::now());
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "line 2\n");
        assert_eq!(fs::read_to_string(dir.path().join("real.log.old")).unwrap(), "line 1\n");
    }

    #[test]
    fn a_log_that_cannot_be_renamed_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.log");
        // A directory with the name of the old log makes the rename fail.
        fs::create_dir(previous_log(&path)).unwrap();
        let mut sink = sink(&path, 10);
        for line in [b"line 1\n", b"line 2\n"] {
            sink.put(line, Instant::now());
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 2\n");
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = sink(Path::new("/dev/full"), 10);
        for _ in 0..3 {
            sink.put(b"a line of a full disk\n", Instant::now());
        }
        let path = dir.path().join("weft.log");
        sink.out = Out::File(LogFile::new(&path, 1000, |_| {}));
        sink.put(b"a line with room\n", Instant::now());
        let log = fs::read_to_string(&path).unwrap();
        let (count, line) = log.split_once('\n').unwrap();
        assert!(count.starts_with("3 log lines before this one were lost: No space left"), "{log}");
        assert_eq!(line, "a line with room\n");
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_opened_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later").join("weft.log");
        let mut sink = sink(&path, 1000);
        let now = Instant::now();
        sink.put(b"lost\n", now);
        fs::create_dir(path.parent().unwrap()).unwrap();
        sink.put(b"lost, too\n", now);
        sink.put(b"written\n", now + REOPEN);
        let log = fs::read_to_string(&path).unwrap();
        assert!(
            log.starts_with("2 log lines before this one were lost") && log.ends_with("\nwritten\n"),
            "{log}"
        );
    }

    #[test]
    fn others_cannot_read_a_log() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.log");
        sink(&path, 1000).put(b"line\n", Instant::now());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
    }
}
