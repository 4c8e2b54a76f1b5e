//! A stream on which everything has to be done by a time.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The time, by the monotonic clock.
pub(super) struct Deadline(Cell<u64>);

impl Deadline {
    /// So long from now on.
    pub(super) fn after(time: Duration) -> Deadline {
        let deadline = Deadline(Cell::new(0));
        deadline.extend(time);
        deadline
    }

    /// Another one: so long from now on.
    pub(super) fn extend(&self, time: Duration) {
        self.0.set(rt::monotonic_ns() + time.as_nanos() as u64);
    }

    fn rest(&self) -> io::Result<Duration> {
        match self.0.get().saturating_sub(rt::monotonic_ns()) {
            0 => Err(io::ErrorKind::TimedOut.into()),
            // No less than the kernel's clock can count; nothing would be no limit.
            rest => Ok(Duration::from_nanos(rest).max(Duration::from_millis(1))),
        }
    }
}

/// The stream. However small the pieces are in which a peer sends or takes something, the deadline
/// stays.
pub(super) struct Timed<'a> {
    stream: TcpStream,
    deadline: &'a Deadline,
}

impl Timed<'_> {
    pub(super) fn by(stream: TcpStream, deadline: &Deadline) -> Timed<'_> {
        Timed { stream, deadline }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.rest()?))?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.rest()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
