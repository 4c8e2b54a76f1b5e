//! As much of HTTP/1.1 as a request needs: one a connection.

use serde_json::{Value, json};
use std::io::{self, Read, Write};
use types::{Errno, Error};

/// Bytes of the head of a request. Tokens and paths are short.
const MAX_HEAD: usize = 16 * 1024;

/// Headers of a request.
const MAX_HEADERS: usize = 64;

/// Bytes of a body: a few fields.
const MAX_BODY: usize = 64 * 1024;

/// A request.
pub(super) struct HttpRequest {
    pub method: String,
    /// Without a query.
    pub path: String,
    pub body: Vec<u8>,
    /// Of `Authorization: Bearer`.
    pub token: Option<String>,
}

/// An answer.
pub(super) struct Response {
    pub status: u16,
    /// Nothing where the status says all.
    pub body: Option<Value>,
}

impl Response {
    pub fn ok(body: Value) -> Response {
        Response { status: 200, body: Some(body) }
    }

    pub fn refused(status: u16, error: &str, hint: &str) -> Response {
        Response { status, body: Some(json!({ "error": error, "hint": hint })) }
    }

    /// What a refusal of management is in HTTP.
    pub fn failed(error: &Error) -> Response {
        let status = match error.errno {
            Errno::ENOENT | Errno::ENODEV => 404,
            Errno::EACCES | Errno::EPERM => 403,
            Errno::EINVAL | Errno::E2BIG | Errno::EPROTO => 400,
            Errno::EEXIST | Errno::EBUSY | Errno::ENOTEMPTY | Errno::EADDRINUSE => 409,
            Errno::EOPNOTSUPP => 501,
            Errno::EAGAIN => 503,
            Errno::ETIMEDOUT => 504,
            _ => 500,
        };
        let text = if error.message.is_empty() { error.errno.name() } else { &error.message };
        Response::refused(status, text, &error.hint)
    }

    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            204 => "No Content",
            401 => "Unauthorized",
            404 => "Not Found",
            _ => "Status",
        };
        let body = self.body.as_ref().map_or_else(String::new, |body| format!("{body}\n"));
        let mut head = format!("HTTP/1.1 {} {reason}\r\nConnection: close\r\n", self.status);
        if self.status == 401 {
            head += "WWW-Authenticate: Bearer\r\n";
        }
        if self.body.is_some() {
            head += "Content-Type: application/json\r\n";
        }
        if self.status != 204 {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        stream.flush()
    }
}

/// Reads a request; one that is none, or too large, is answered at once.
pub(super) fn read_request(stream: &mut impl Read) -> io::Result<Result<HttpRequest, Response>> {
    let mut bytes = Vec::new();
    let malformed = |what: &str| {
        Ok(Err(Response::refused(400, what, "docs/reference/openapi.json says what can be asked")))
    };
    loop {
        let mut part = [0; 4096];
        let got = stream.read(&mut part)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&part[..got]);
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let head = match parsed.parse(&bytes) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) if bytes.len() <= MAX_HEAD => continue,
            Ok(httparse::Status::Partial) => return malformed("the head of the request is too long"),
            Err(_) => return malformed("the request is not HTTP/1.1"),
        };
        let header = |name: &str| {
            let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(found.value).ok()
        };
        if header("Transfer-Encoding").is_some() {
            return malformed("the body must have a length and no other encoding");
        }
        let len = match header("Content-Length").map(str::parse::<usize>) {
            None => 0,
            Some(Ok(len)) if len <= MAX_BODY => len,
            Some(_) => return malformed("the body is too long"),
        };
        let target = parsed.path.unwrap_or_default();
        let token = header("Authorization").and_then(|value| value.strip_prefix("Bearer "));
        let request = HttpRequest {
            method: parsed.method.unwrap_or_default().to_string(),
            path: target.split('?').next().unwrap_or_default().to_string(),
            token: token.map(|token| token.trim().to_string()),
            body: Vec::new(),
        };
        let mut body = bytes.split_off(head);
        body.truncate(len);
        let have = body.len();
        body.resize(len, 0);
        stream.read_exact(&mut body[have..])?;
        return Ok(Ok(HttpRequest { body, ..request }));
    }
}
