//! A stream with one deadline for all reads and writes.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A deadline by the monotonic clock, in nanoseconds.
pub(super) struct Deadline(Cell<u64>);

impl Deadline {
    /// Returns the deadline this long from now.
    pub(super) fn after(time: Duration) -> Deadline {
        let deadline = Deadline(Cell::new(0));
        deadline.extend(time);
        deadline
    }

    /// Moves the deadline to this long from now.
    pub(super) fn extend(&self, time: Duration) {
        self.0.set(rt::monotonic_ns() + time.as_nanos() as u64);
    }

    fn remaining(&self) -> io::Result<Duration> {
        match self.0.get().saturating_sub(rt::monotonic_ns()) {
            0 => Err(io::ErrorKind::TimedOut.into()),
            // At least what the kernel's clock resolves; zero would mean no time-out.
            rest => Ok(Duration::from_nanos(rest).max(Duration::from_millis(1))),
        }
    }
}

/// A stream whose deadline doesn't move, however small the pieces are that the peer sends or
/// receives.
pub(super) struct DeadlineStream<'a> {
    stream: TcpStream,
    deadline: &'a Deadline,
}

impl DeadlineStream<'_> {
    pub(super) fn by(stream: TcpStream, deadline: &Deadline) -> DeadlineStream<'_> {
        DeadlineStream { stream, deadline }
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.remaining()?))?;
        self.stream.read(into)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.remaining()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
