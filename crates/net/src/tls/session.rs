//! One end of a TLS connection without its socket: bytes in, bytes out.
//!
//! Received bytes wait in a staging buffer. Records are decrypted from it one by one, into the
//! memory that the caller passes; plaintext that doesn't fit there is buffered. Plaintext to send
//! is encrypted into one buffer, many records at a time.

use super::{CHECK_BOTH, NEW_CERTIFICATE, OTHER_CLUSTER, TlsRefusal};
use crate::limits::{IDLE_STAGE_BYTES, TLS_BULK_STAGE_BYTES, TLS_SEND_BYTES, TLS_STAGE_BYTES};
use crate::receive_sizing::ReceiveSizing;
use rt::IoBuf;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, ServerConfig};
use std::io;
use std::sync::Arc;

/// Bytes of a record's header: type, version, length.
const RECORD_HEADER_BYTES: usize = 5;

/// Plaintext bytes of a full record.
const RECORD_PLAIN_BYTES: usize = 16 << 10;

/// Bytes of a record in addition to its plaintext: header, inner type, tag.
const RECORD_OVERHEAD_BYTES: usize = RECORD_HEADER_BYTES + 1 + 16;

/// Control records that may precede each record with data: two key updates, of five bytes each.
const CONTROL_BYTES: usize = 2 * (5 + RECORD_OVERHEAD_BYTES);

/// One end.
pub(super) struct Session {
    end: End,
    stage: IoBuf,
    /// Bytes of the stage that are received and not yet processed, from `start` to `filled`.
    start: usize,
    filled: usize,
    /// Decrypted bytes that didn't fit into the last caller's buffer, from `undelivered_from` on.
    undelivered: Vec<u8>,
    undelivered_from: usize,
    /// Control records that wait to be sent.
    control: Vec<u8>,
    /// The last receive filled a large buffer completely.
    bulk: bool,
    receive_sizing: ReceiveSizing,
    /// The error that made the session unusable.
    broken: Option<rustls::Error>,
}

enum End {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// Outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// More of the staged bytes may be processable.
    Continue,
    /// More bytes must be received.
    NeedsBytes,
    /// The peer has closed its side.
    Closed,
}

impl Session {
    pub(super) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Session> {
        let end = UnbufferedClientConnection::new(config, name).map_err(failure)?;
        Ok(Session::new(End::Client(Box::new(end))))
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> io::Result<Session> {
        let end = UnbufferedServerConnection::new(config).map_err(failure)?;
        Ok(Session::new(End::Server(Box::new(end))))
    }

    fn new(end: End) -> Session {
        Session {
            end,
            stage: IoBuf::alloc(IDLE_STAGE_BYTES),
            start: 0,
            filled: 0,
            undelivered: Vec::new(),
            undelivered_from: 0,
            control: Vec::new(),
            bulk: false,
            receive_sizing: ReceiveSizing::default(),
            broken: None,
        }
    }

    /// Whether the handshake isn't complete.
    pub(super) fn is_handshaking(&self) -> bool {
        match &self.end {
            End::Client(end) => end.is_handshaking(),
            End::Server(end) => end.is_handshaking(),
        }
    }

    /// The peer's certificates.
    pub(super) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        match &self.end {
            End::Client(end) => end.peer_certificates(),
            End::Server(end) => end.peer_certificates(),
        }
    }

    /// The negotiated application protocol.
    pub(super) fn protocol(&self) -> Option<&[u8]> {
        match &self.end {
            End::Client(end) => end.alpn_protocol(),
            End::Server(end) => end.alpn_protocol(),
        }
    }

    /// Whether all received bytes have been delivered.
    pub(super) fn is_drained(&self) -> bool {
        self.start == self.filled && self.undelivered_from == self.undelivered.len()
    }

    /// Where the next bytes from the socket belong. Never empty: the header of a record that
    /// doesn't fit into a large stage makes the session refuse it.
    pub(super) fn receive_buffer(&mut self) -> IoBuf {
        if self.start == self.filled {
            (self.start, self.filled) = (0, 0);
            let size = match (self.bulk, self.receive_sizing.is_large()) {
                (true, _) => TLS_BULK_STAGE_BYTES,
                (false, true) => TLS_STAGE_BYTES,
                (false, false) => IDLE_STAGE_BYTES,
            };
            if self.stage.len() != size {
                self.stage = IoBuf::alloc(size);
            }
            if size == IDLE_STAGE_BYTES {
                // The buffer may have grown while the connection was busy.
                self.undelivered.shrink_to_fit();
            }
            return self.stage.clone();
        }
        let staged = self.stage.slice(self.start..self.filled);
        if staged.len() == self.stage.len() {
            self.stage = IoBuf::alloc(TLS_STAGE_BYTES.max(staged.len()));
        }
        if self.start > 0 || self.stage.as_ptr() != staged.as_ptr() {
            self.stage.copy_from(0, staged.as_slice());
            (self.start, self.filled) = (0, staged.len());
        }
        self.stage.slice(self.filled..self.stage.len())
    }

    /// Notes that `bytes` bytes were received into the room.
    pub(super) fn received(&mut self, bytes: usize) {
        let room = self.stage.len() - self.filled;
        self.filled += bytes;
        self.bulk = self.filled == self.stage.len() && self.stage.len() >= TLS_STAGE_BYTES;
        self.receive_sizing.note(bytes, room, rt::monotonic_ns());
    }

    /// Control records that must be sent now: in a handshake, after every step.
    pub(super) fn take_control(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.control)
    }

    /// Continues a handshake. Returns [`Step::NeedsBytes`] when more bytes must be received, or
    /// when it is complete.
    pub(super) fn continue_handshake(&mut self) -> io::Result<Step> {
        loop {
            match self.step(&mut PlaintextSink { into: None, done: 0 })? {
                Step::Continue if self.undelivered.is_empty() => {}
                step => return Ok(step),
            }
        }
    }

    /// Decrypts available records into `into` and returns the number of bytes. `None` when the peer
    /// has closed its side, 0 when no complete record is available.
    pub(super) fn decrypt(&mut self, into: &IoBuf) -> io::Result<Option<usize>> {
        let done = self.take_undelivered(into);
        let mut target = PlaintextSink { into: Some(into), done };
        while target.done < into.len() {
            match self.step(&mut target)? {
                Step::Continue => {}
                Step::NeedsBytes => break,
                Step::Closed if target.done == 0 => return Ok(None),
                Step::Closed => break,
            }
        }
        Ok(Some(target.done))
    }

    fn take_undelivered(&mut self, into: &IoBuf) -> usize {
        let part = (self.undelivered.len() - self.undelivered_from).min(into.len());
        into.copy_from(0, &self.undelivered[self.undelivered_from..self.undelivered_from + part]);
        self.undelivered_from += part;
        if self.undelivered_from == self.undelivered.len() {
            self.undelivered.clear();
            self.undelivered_from = 0;
        }
        part
    }

    /// Processes records up to the next one with data, or returns why it can't.
    fn step(&mut self, target: &mut PlaintextSink<'_>) -> io::Result<Step> {
        self.check()?;
        let staged = self.start..self.filled;
        let records = &mut exclusive(&mut self.stage, self.filled)[staged];
        let undelivered = &mut self.undelivered;
        let (discard, result) =
            self.end.step(records, |plain| target.take(plain, undelivered), &mut self.control, None);
        self.start += discard;
        match result {
            // Part of a protocol message would have to stay staged while other records are sent. A
            // conforming peer doesn't send that.
            Ok(Step::NeedsBytes) if !self.is_handshaking() && self.has_whole_record() => {
                Err(self.fail(general("a protocol message is fragmented")))
            }
            Ok(step) => Ok(step),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Whether a complete record is staged.
    fn has_whole_record(&self) -> bool {
        let staged = self.stage.slice(self.start..self.filled);
        let Some(header) = staged.as_slice().first_chunk::<RECORD_HEADER_BYTES>() else { return false };
        staged.len() - RECORD_HEADER_BYTES >= u16::from_be_bytes([header[3], header[4]]) as usize
    }

    fn check(&self) -> io::Result<()> {
        self.broken.as_ref().map_or(Ok(()), |error| Err(failure(error.clone())))
    }

    /// Makes the session unusable; the alert for the peer is among the control records to send.
    fn fail(&mut self, error: rustls::Error) -> io::Error {
        if self.end.has_alert() {
            // The library emits the alert before it processes any bytes.
            let _ = self.end.step(&mut [], |_: &[u8]| {}, &mut self.control, None);
        }
        self.broken = Some(error.clone());
        failure(error)
    }

    /// Encrypts from the front of the plaintext; `None` when nothing is left.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] while the handshake isn't complete.
    pub(super) fn encrypt(&mut self, plain: &mut Plaintext) -> io::Result<Option<IoBuf>> {
        self.check()?;
        if self.is_handshaking() {
            // Part of a message may be staged, which the library would expect among the bytes that
            // it is given below.
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut room = plain.len().min(TLS_SEND_BYTES);
        if room == 0 {
            return Ok(None);
        }
        let records = room.div_ceil(RECORD_PLAIN_BYTES);
        let overhead = records * (RECORD_OVERHEAD_BYTES + CONTROL_BYTES);
        let mut out = IoBuf::alloc(self.control.len() + room + overhead);
        let buffer = out.exclusive().expect("there is no other handle to it");
        let mut end = 0;
        while let Some(part) = plain.next(room.min(RECORD_PLAIN_BYTES)) {
            room -= part.len();
            let mut written = 0;
            while written == 0 {
                end += put(buffer, end, &std::mem::take(&mut self.control))?;
                let write = PlaintextWrite { part, into: &mut buffer[end..], written: &mut written };
                let undelivered = &mut self.undelivered;
                let keep = |plain: &[u8]| undelivered.extend_from_slice(plain);
                // Passes no received bytes: a receive into the staging buffer may be in progress.
                let step = self.end.step(&mut [], keep, &mut self.control, Some(write)).1.map_err(failure)?;
                if written == 0 && step != Step::Continue {
                    return Err(io::ErrorKind::NotConnected.into());
                }
            }
            end += written;
        }
        Ok(Some(out.slice(0..end)))
    }
}

/// Writes bytes into a buffer at `at`; returns their number.
fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) -> io::Result<usize> {
    let into = buffer.get_mut(at..at + bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
    into.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// A buffer's memory. If it is still shared, its first `keep` bytes move to a new buffer.
fn exclusive(buf: &mut IoBuf, keep: usize) -> &mut [u8] {
    if buf.exclusive().is_none() {
        let moved = IoBuf::alloc(buf.len());
        moved.copy_from(0, &buf.as_slice()[..keep]);
        *buf = moved;
    }
    buf.exclusive().expect("there is no other handle to it")
}

impl End {
    /// Processes received bytes; returns how many were consumed, and the outcome.
    fn step(
        &mut self,
        records: &mut [u8],
        plain: impl FnMut(&[u8]),
        control: &mut Vec<u8>,
        write: Option<PlaintextWrite<'_>>,
    ) -> (usize, Result<Step, rustls::Error>) {
        match self {
            End::Client(end) => handle_state(end.process_tls_records(records), plain, control, write),
            End::Server(end) => handle_state(end.process_tls_records(records), plain, control, write),
        }
    }

    /// Whether the library has records to send.
    fn has_alert(&self) -> bool {
        match self {
            End::Client(end) => end.wants_write(),
            End::Server(end) => end.wants_write(),
        }
    }
}

/// Destination of decrypted bytes.
struct PlaintextSink<'a> {
    into: Option<&'a IoBuf>,
    /// Bytes written so far.
    done: usize,
}

impl PlaintextSink<'_> {
    /// Writes plaintext; appends bytes that don't fit to `undelivered`.
    fn take(&mut self, plain: &[u8], undelivered: &mut Vec<u8>) {
        let part = self.into.map_or(0, |into| plain.len().min(into.len() - self.done));
        if let Some(into) = self.into {
            into.copy_from(self.done, &plain[..part]);
        }
        self.done += part;
        undelivered.extend_from_slice(&plain[part..]);
    }
}

/// Plaintext to send once the protocol allows it.
struct PlaintextWrite<'a> {
    part: &'a [u8],
    into: &'a mut [u8],
    /// Stays 0 until then.
    written: &'a mut usize,
}

/// Handles one connection state of the library.
fn handle_state<D>(
    status: UnbufferedStatus<'_, '_, D>,
    mut plain: impl FnMut(&[u8]),
    control: &mut Vec<u8>,
    write: Option<PlaintextWrite<'_>>,
) -> (usize, Result<Step, rustls::Error>) {
    let mut discard = status.discard;
    let step = match status.state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    plain(record.payload);
                    discard += record.discard;
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Continue),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut records)) => {
            encode(&mut records, control).map(|()| Step::Continue)
        }
        // The caller sends the control records before anything else.
        Ok(ConnectionState::TransmitTlsData(records)) => {
            records.done();
            Ok(Step::Continue)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::NeedsBytes),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match write {
            Some(PlaintextWrite { part, into, written }) => traffic
                .encrypt(part, into)
                .map(|bytes| *written = bytes)
                .map_err(general)
                .map(|()| Step::NeedsBytes),
            None => Ok(Step::NeedsBytes),
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(other) => Err(general(format!("unexpected state: {other:?}"))),
    };
    (discard, step)
}

/// Appends a control record to those that wait to be sent.
fn encode<D>(records: &mut EncodeTlsData<'_, D>, control: &mut Vec<u8>) -> Result<(), rustls::Error> {
    let at = control.len();
    let size = match records.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => required_size,
        Ok(_) => return Ok(()),
        Err(error) => return Err(general(error)),
    };
    control.resize(at + size, 0);
    records.encode(&mut control[at..]).map(drop).map_err(general)
}

fn general(cause: impl ToString) -> rustls::Error {
    rustls::Error::General(cause.to_string())
}

/// Converts errors to those of sockets, so that all transports fail alike. A refusal of the other
/// end's certificate or protocol has its own kind (`PermissionDenied`), since it is permanent.
pub(super) fn failure(error: rustls::Error) -> io::Error {
    use rustls::{AlertDescription as Alert, Error};
    // Clients verify the server's certificate before they show their own.
    let is_of_this_end =
        matches!(error, Error::AlertReceived(alert) if alert != Alert::NoApplicationProtocol);
    let (cause, remedy) = match error {
        Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer) => {
            ("the peer's certificate is refused: it is of another cluster".to_string(), OTHER_CLUSTER)
        }
        Error::InvalidCertificate(cause) => {
            (format!("the peer's certificate is refused: {cause}"), CHECK_BOTH)
        }
        Error::NoCertificatesPresented => ("the peer presented no certificate".to_string(), CHECK_BOTH),
        Error::NoApplicationProtocol | Error::AlertReceived(Alert::NoApplicationProtocol) => {
            ("the ends speak different protocols".to_string(), CHECK_BOTH)
        }
        Error::AlertReceived(alert @ (Alert::CertificateRevoked | Alert::CertificateExpired)) => {
            (format!("our certificate was refused: {alert:?}"), NEW_CERTIFICATE)
        }
        Error::AlertReceived(
            alert @ (Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::CertificateRequired),
        ) => (format!("our certificate was refused: {alert:?}"), CHECK_BOTH),
        error => return io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}")),
    };
    TlsRefusal { cause, remedy, is_of_this_end }.into()
}

/// Bytes to send, in pieces.
pub(super) struct Plaintext {
    pieces: Vec<IoBuf>,
    /// The rest: the pieces from `first` on, without the first `skip` bytes of that one.
    first: usize,
    skip: usize,
    /// Where small pieces are gathered.
    gathered: Vec<u8>,
}

impl Plaintext {
    pub(super) fn new(pieces: Vec<IoBuf>) -> Plaintext {
        Plaintext { pieces, first: 0, skip: 0, gathered: Vec::new() }
    }

    /// Bytes left.
    fn len(&self) -> usize {
        let left = self.pieces.get(self.first..).unwrap_or_default();
        left.iter().map(IoBuf::len).sum::<usize>() - self.skip
    }

    /// The next bytes, at most `most`; not copied if one piece has that many.
    fn next(&mut self, most: usize) -> Option<&[u8]> {
        self.gathered.clear();
        if most == 0 {
            return None;
        }
        while let Some(piece) = self.pieces.get(self.first) {
            let left = piece.len() - self.skip;
            let want = most - self.gathered.len();
            let part = self.skip..self.skip + left.min(want);
            let alone = self.gathered.is_empty() && (left >= want || self.first + 1 == self.pieces.len());
            let first = self.first;
            if part.end == piece.len() {
                (self.first, self.skip) = (first + 1, 0);
            } else {
                self.skip = part.end;
            }
            if part.is_empty() {
                continue;
            }
            if alone {
                return Some(&self.pieces[first].as_slice()[part]);
            }
            self.gathered.extend_from_slice(&self.pieces[first].as_slice()[part]);
            if self.gathered.len() == most {
                break;
            }
        }
        (!self.gathered.is_empty()).then_some(&self.gathered)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
