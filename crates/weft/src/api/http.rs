//! A minimal HTTP/1.1 server side: one request per connection.

use serde_json::{Value, json};
use std::io::{self, Read, Write};
use types::{Errno, Error};

/// Largest head of a request, in bytes. Tokens and paths are short.
const MAX_HEAD: usize = 16 * 1024;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Largest body, in bytes: a few fields.
const MAX_BODY: usize = 64 * 1024;

/// An HTTP request.
pub(super) struct HttpRequest {
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Text after the question mark.
    pub query: String,
    pub body: Vec<u8>,
    /// Token from `Authorization: Bearer`.
    pub token: Option<String>,
}

/// An HTTP response.
pub(super) struct Response {
    pub status: u16,
    /// `None` if the status says everything.
    pub body: Option<Value>,
    /// Methods that the path supports, for a response with status 405 (RFC 9110, section 15.5.6).
    pub allow: Option<String>,
}

impl Response {
    pub fn ok(body: Value) -> Response {
        Response { status: 200, body: Some(body), allow: None }
    }

    pub fn no_content() -> Response {
        Response { status: 204, body: None, allow: None }
    }

    pub fn error(status: u16, error: &str, hint: &str) -> Response {
        Response { status, body: Some(json!({ "error": error, "hint": hint })), allow: None }
    }

    /// Converts an error of management to an HTTP response.
    pub fn from_error(error: &Error) -> Response {
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
        Response::error(status, text, &error.hint)
    }

    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        self.write_response(stream, false)
    }

    /// Writes the response. `is_head`: only its head, with the length that the body would have.
    pub fn write_response(&self, stream: &mut impl Write, is_head: bool) -> io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            204 => "No Content",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            503 => "Service Unavailable",
            _ => "Status",
        };
        let body = self.body.as_ref().map_or_else(String::new, |body| format!("{body}\n"));
        let mut head = format!("HTTP/1.1 {} {reason}\r\nConnection: close\r\n", self.status);
        if self.status == 401 {
            head += "WWW-Authenticate: Bearer\r\n";
        }
        if let Some(allow) = &self.allow {
            head += &format!("Allow: {allow}\r\n");
        }
        if self.body.is_some() {
            head += "Content-Type: application/json\r\n";
        }
        if self.status != 204 {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        let body = if is_head { "" } else { body.as_str() };
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        stream.flush()
    }
}

/// Reads a request. The inner `Err` is the response to a malformed or too large request.
pub(super) fn read_request(stream: &mut impl Read) -> io::Result<Result<HttpRequest, Response>> {
    let mut bytes = Vec::new();
    let malformed = |what: &str| {
        Ok(Err(Response::error(400, what, "docs/reference/openapi.json describes the requests")))
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
            return malformed("the body must have a Content-Length and no Transfer-Encoding");
        }
        let len = match header("Content-Length").map(str::parse::<usize>) {
            None => 0,
            Some(Ok(len)) if len <= MAX_BODY => len,
            Some(_) => return malformed("the body is too long"),
        };
        let target = parsed.path.unwrap_or_default();
        let token = header("Authorization").and_then(|value| value.strip_prefix("Bearer "));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let request = HttpRequest {
            method: parsed.method.unwrap_or_default().to_string(),
            path: path.to_string(),
            query: query.to_string(),
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
