//! Fuzzing of the HTTP request parser with arbitrary bytes: the body of the fuzz target `http`, and
//! a short form of it as tests.

use super::http::{HttpRequest, read_request};
use std::io::{self, Read};

/// Requests shorter than this (in bytes) parse the same, however they are split.
const ONE_PIECE_BYTES: usize = 4096;

/// Checks that the parser reads a request, refuses it or reports it as truncated, however its bytes
/// are split, and that a request that was read survives being written and read again.
///
/// # Panics
/// If one of these doesn't hold.
pub fn request(bytes: &[u8]) {
    let read = read_from(&mut &*bytes);
    if bytes.len() < ONE_PIECE_BYTES {
        let in_pieces = read_from(&mut Pieces(bytes));
        assert_eq!(in_pieces.is_some(), read.is_some());
    }
    let Some(request) = read else { return };
    let token =
        request.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "{} {}?{} HTTP/1.1\r\n{token}Content-Length: {}\r\n\r\n",
        request.method,
        request.path,
        request.query,
        request.body.len()
    );
    let again =
        read_from(&mut &[head.as_bytes(), &request.body].concat()[..]).expect("what was written is read");
    assert_eq!((again.method, again.path, again.query), (request.method, request.path, request.query));
    assert!((again.body, again.token) == (request.body, request.token));
}

fn read_from(stream: &mut impl Read) -> Option<HttpRequest> {
    match read_request(stream) {
        Ok(Ok(request)) => Some(request),
        Ok(Err(refusal)) => {
            assert_eq!(refusal.status, 400);
            refusal.write(&mut io::sink()).expect("a sink takes everything");
            None
        }
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            None
        }
    }
}

/// A stream that returns a few bytes per read.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(7);
        self.0.read(&mut into[..most])
    }
}

#[cfg(test)]
mod tests {
    /// Random mutations of each request.
    const ROUNDS: usize = 2000;

    #[test]
    fn damaged_requests_are_read_or_refused() {
        mutate::confined(|| {
            let requests = [
                "GET /v1/targets/3?x=y HTTP/1.1\r\nHost: n1:7580\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n",
                "PATCH /v1/nodes/n1 HTTP/1.1\r\nAuthorization: Bearer 01 \r\nContent-Type: application/json\r\n\
                 Content-Length: 18\r\n\r\n{\"name\":\"n2\",\"r\":1}",
                "DELETE /v1/exports/10.0.0.0%2F8 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ];
            for request in requests {
                mutate::damage(request.as_bytes(), ROUNDS, super::request);
            }
        });
    }

    #[test]
    fn long_requests_are_refused() {
        mutate::confined(|| {
            let header = |length| format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(length));
            for length in [1000, 4000, 16_000, 17_000, 100_000] {
                super::request(header(length).as_bytes());
                super::request(format!("{}\r\n\r\n", header(length)).as_bytes());
            }
            super::request(format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65)).as_bytes());
            super::request(b"GET / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n");
            super::request(b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n");
        });
    }
}
