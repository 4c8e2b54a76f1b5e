//! Receiving frames from a stream.
//!
//! One receive takes many small frames off the socket into a staging buffer, from which they are
//! parsed. When more than [`DIRECT_RECEIVE_BYTES`] of a payload are outstanding, they are received
//! directly into the payload's buffer. While large payloads are expected, receives into the staging
//! buffer are short, so that little has to be copied. A mostly idle connection has a small staging
//! buffer.

use crate::fault::Fault;
use crate::limits::{
    BULK_PEEK_BYTES, DIRECT_RECEIVE_BYTES, IDLE_STAGE_BYTES, RECEIVE_PIECE_BYTES, RECEIVE_STAGE_BYTES,
};
use crate::receive_sizing::ReceiveSizing;
use crate::stream::{Stream, Transport};
use rt::IoBuf;
use std::cell::Cell;
use std::rc::Rc;
use types::{block_crcs, combine_block_crcs};
use wire::Malformed;
use wire::frame::{HEADER_BYTES, Header};

/// Statistics of a receiver, shared with other tasks.
#[derive(Default)]
pub(crate) struct ReceiveStats {
    /// When the last byte arrived, by the monotonic clock.
    pub(crate) last_receive_ns: Cell<u64>,
    /// Total bytes received.
    pub(crate) bytes: Cell<u64>,
}

/// The receiving half of a connection.
pub(crate) struct Inbound {
    stream: Rc<Stream>,
    stage: IoBuf,
    /// Bytes of the stage that are received and not yet taken, from `start` to `end`.
    start: usize,
    end: usize,
    /// Large payloads are expected.
    bulk: bool,
    /// Payloads may be in shared memory.
    shares_memory: bool,
    receive_sizing: ReceiveSizing,
    receive_stats: Rc<ReceiveStats>,
}

impl Inbound {
    pub(crate) fn new(stream: Rc<Stream>) -> Inbound {
        let receive_stats = Rc::new(ReceiveStats::default());
        receive_stats.last_receive_ns.set(rt::monotonic_ns());
        Inbound {
            stage: IoBuf::alloc(IDLE_STAGE_BYTES),
            start: 0,
            end: 0,
            bulk: false,
            shares_memory: stream.transport() == Transport::SharedMemory,
            receive_sizing: ReceiveSizing::default(),
            stream,
            receive_stats,
        }
    }

    pub(crate) fn receive_stats(&self) -> Rc<ReceiveStats> {
        self.receive_stats.clone()
    }

    /// Whether all received bytes have been taken.
    pub(crate) fn is_drained(&self) -> bool {
        self.start == self.end
    }

    /// Sets whether large payloads are expected.
    pub(crate) fn expect_bulk(&mut self, bulk: bool) {
        self.bulk = bulk;
    }

    /// The next frame's header; `None` at the end of the stream. The caller must take body and
    /// payload next.
    pub(crate) async fn header(&mut self) -> Result<Option<Header>, Fault> {
        while self.staged() < HEADER_BYTES {
            match self.fill(HEADER_BYTES).await {
                Ok(()) => {}
                Err(Fault::Closed) if self.is_drained() => return Ok(None),
                Err(fault) => return Err(fault),
            }
        }
        let bytes = self.take(HEADER_BYTES);
        let bytes: &[u8; HEADER_BYTES] = bytes.as_slice().try_into().expect("so many were taken");
        let header = Header::decode(bytes)?;
        if header.payload_place != 0 && !self.shares_memory {
            return Err(Fault::unexpected("a header names a place in shared memory, but there is none"));
        }
        Ok(Some(header))
    }

    /// The frame's body, with its checksum verified. Its bytes are valid until the next receive.
    pub(crate) async fn body(&mut self, header: &Header) -> Result<IoBuf, Fault> {
        let len = header.body_bytes as usize;
        let body = if len <= RECEIVE_STAGE_BYTES {
            while self.staged() < len {
                self.fill(len).await?;
            }
            self.take(len)
        } else {
            let body = IoBuf::alloc(len);
            self.receive(&body).await?;
            body
        };
        header.check_body(body.as_slice())?;
        Ok(body)
    }

    /// Receives the frame's payload into `into`, which has exactly its length. Verifies the
    /// checksum if there is one.
    pub(crate) async fn payload(&mut self, header: &Header, into: &IoBuf) -> Result<(), Fault> {
        self.receive(into).await?;
        Ok(check_payload(header, into)?)
    }

    /// Receives the payload of an answer whose sender may have left it to this end to verify the
    /// checksum. False: the payload doesn't match.
    pub(crate) async fn unchecked_payload(&mut self, header: &Header, into: &IoBuf) -> Result<bool, Fault> {
        self.receive(into).await?;
        matches_or_fault(header, into)
    }

    /// Discards a payload.
    pub(crate) async fn skip(&mut self, mut len: usize) -> Result<(), Fault> {
        loop {
            let part = len.min(self.staged());
            self.take(part);
            len -= part;
            if len == 0 {
                return Ok(());
            }
            self.fill(1).await?;
        }
    }

    async fn receive(&mut self, into: &IoBuf) -> Result<(), Fault> {
        let mut done = 0;
        while done < into.len() {
            let left = into.len() - done;
            if self.is_drained() && left > DIRECT_RECEIVE_BYTES {
                let piece = left.min(RECEIVE_PIECE_BYTES);
                self.stream.recv_exact(into.slice(done..done + piece)).await?;
                self.note(piece);
                done += piece;
                continue;
            }
            if self.is_drained() {
                self.fill(1).await?;
            }
            let part = self.take(left.min(self.staged()));
            into.copy_from(done, part.as_slice());
            done += part.len();
        }
        Ok(())
    }

    fn staged(&self) -> usize {
        self.end - self.start
    }

    fn take(&mut self, len: usize) -> IoBuf {
        let taken = self.stage.slice(self.start..self.start + len);
        self.start += len;
        taken
    }

    /// Receives more, after making space for `wanted` contiguous bytes.
    async fn fill(&mut self, wanted: usize) -> Result<(), Fault> {
        self.make_room(wanted);
        let room = self.stage.len() - self.end;
        let most = if self.bulk { room.min(BULK_PEEK_BYTES.max(wanted)) } else { room };
        match self.stream.recv(self.stage.slice(self.end..self.end + most)).await? {
            0 => Err(Fault::Closed),
            got => {
                self.note(got);
                self.receive_sizing.note(got, most, self.receive_stats.last_receive_ns.get());
                self.end += got;
                Ok(())
            }
        }
    }

    fn make_room(&mut self, wanted: usize) {
        if self.is_drained() {
            (self.start, self.end) = (0, 0);
            let large = self.receive_sizing.is_large() || wanted > IDLE_STAGE_BYTES;
            let size = if large { RECEIVE_STAGE_BYTES } else { IDLE_STAGE_BYTES };
            if self.stage.len() != size {
                self.stage = IoBuf::alloc(size);
            }
        } else if self.start + wanted > self.stage.len() {
            let staged = self.stage.slice(self.start..self.end);
            if wanted > self.stage.len() {
                self.stage = IoBuf::alloc(RECEIVE_STAGE_BYTES);
            }
            self.stage.copy_from(0, staged.as_slice());
            (self.start, self.end) = (0, staged.len());
        }
    }

    fn note(&self, bytes: usize) {
        self.receive_stats.last_receive_ns.set(rt::monotonic_ns());
        self.receive_stats.bytes.set(self.receive_stats.bytes.get() + bytes as u64);
    }
}

/// Whether the payload of an answer matches its checksum. A mismatch is a fault of the connection,
/// unless the sender hasn't verified the payload.
pub(crate) fn matches_or_fault(header: &Header, payload: &IoBuf) -> Result<bool, Fault> {
    match check_payload(header, payload) {
        Ok(()) => Ok(true),
        Err(_) if header.unchecked => Ok(false),
        Err(malformed) => Err(malformed.into()),
    }
}

/// Verifies a payload, if it has a checksum. A receiver that stores or forwards the payload needs
/// the checksums of its blocks: then these are computed instead, and noted in the buffer.
pub(crate) fn check_payload(header: &Header, payload: &IoBuf) -> Result<(), Malformed> {
    if header.payload_sum.is_none() {
        return Ok(());
    }
    if !payload.can_note_checksums() {
        return header.check_payload(payload.as_slice());
    }
    let sums = block_crcs(payload.as_slice());
    header.check_payload_crc(payload.len(), combine_block_crcs(&sums))?;
    payload.note_checksums(sums);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LARGE_BUFFER_RETENTION;
    use rt::net::Socket;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use wire::frame::FrameKind;

    #[test]
    fn an_idle_connection_shrinks_its_buffer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        rt::block_on(async move {
            let stream = Stream::Plain(Socket::from_fd(ours.into()), Transport::Tcp);
            let mut inbound = Inbound::new(Rc::new(stream));
            assert_eq!(inbound.stage.len(), IDLE_STAGE_BYTES);
            let body = vec![7; 20_000];
            theirs.write_all(&Header::new(FrameKind::Request, 1).with_body(&body).encode()).unwrap();
            theirs.write_all(&body).unwrap();
            let header = inbound.header().await.unwrap().unwrap();
            assert_eq!(inbound.body(&header).await.unwrap().as_slice(), body);
            assert_eq!(inbound.stage.len(), RECEIVE_STAGE_BYTES);
            rt::sleep(LARGE_BUFFER_RETENTION + Duration::from_millis(1)).await;
            theirs.write_all(&Header::new(FrameKind::Ping, 0).encode()).unwrap();
            assert_eq!(inbound.header().await.unwrap().unwrap().kind, FrameKind::Ping);
            // The connection holds only the buffer that waits for the next frame.
            assert!(rt::timeout(Duration::from_millis(10), inbound.header()).await.is_none());
            assert_eq!(inbound.stage.len(), IDLE_STAGE_BYTES);
        })
        .unwrap();
    }
}
