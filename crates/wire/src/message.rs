//! Traits of all messages: encoding, and decoding from untrusted bytes.

use crate::authorization::AuthorizationRule;
use std::fmt;
use types::Error;

/// A message between processes. Payloads (the data of reads and writes) travel beside it.
pub trait Message: Sized {
    /// Appends the encoded message.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a message from bytes, all of which belong to it. Unknown fields of a later version
    /// are ignored.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed>;
}

/// A request, with the properties that its transport needs.
pub trait Request: Message {
    /// Service that handles it.
    const SERVICE: Service;

    /// Kind of answer: whether it has a payload (as the data of a read), and whether it may take
    /// long.
    fn answer_kind(&self) -> AnswerKind;

    /// Its row in the authorization table ([`crate::authorization`]). The transport refuses other
    /// callers before the service sees the request.
    fn rule(&self) -> AuthorizationRule;
}

/// Payload and duration of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerKind {
    /// No payload: a payload beside the request is data for the service.
    NoPayload,
    /// The answer fills the request's payload buffer.
    FillsPayload,
    /// No payload, and no deadline of its own: the answer may take arbitrarily long (a blocking
    /// lock, a wait for news).
    Unbounded,
}

/// Service of a node that handles a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Service {
    Management = 1,
    Metadata = 2,
    Storage = 3,
    /// The metadata store, for metadata services of other processes.
    KeyValue = 4,
    /// Requests between metadata services.
    Partitions = 5,
}

impl Service {
    /// The service with this number.
    pub fn from_number(number: u8) -> Option<Service> {
        match number {
            1 => Some(Service::Management),
            2 => Some(Service::Metadata),
            3 => Some(Service::Storage),
            4 => Some(Service::KeyValue),
            5 => Some(Service::Partitions),
            _ => None,
        }
    }

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Service::Management => "management",
            Service::Metadata => "metadata",
            Service::Storage => "storage",
            Service::KeyValue => "key-value",
            Service::Partitions => "partitions",
        }
    }
}

/// Bytes that don't decode to a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// Reason.
    pub cause: String,
}

impl Malformed {
    /// Makes the error from its reason.
    pub fn new(cause: impl Into<String>) -> Malformed {
        Malformed { cause: cause.into() }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.cause)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::new(types::Errno::EPROTO, malformed.to_string())
    }
}
