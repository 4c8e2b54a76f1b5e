//! What every message can do: become bytes, and come out of bytes that nobody vouches for.

use crate::authorization::Rule;
use std::fmt;
use types::Error;

/// A message as it travels between processes. Payloads (the data of reads and writes) travel beside
/// it.
pub trait Message: Sized {
    /// Appends the message's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Takes a message out of bytes, all of which belong to it. Bytes of a later version may hold
    /// fields that are not known here; they are passed over.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed>;
}

/// A request that knows what its transport has to know of it.
pub trait Request: Message {
    /// The service that it is for.
    const SERVICE: Service;

    /// Bytes of payload that the answer brings: those of a read's buffer.
    fn answer_payload(&self) -> Answer;

    /// Its row in the table of who may ask for what ([`crate::authorization`]). The transport
    /// refuses other callers before the service sees the request.
    fn rule(&self) -> Rule;
}

/// What comes beside an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing: a payload beside the request is data for the service.
    Plain,
    /// The request's payload buffer is to be filled.
    Fills,
    /// Nothing, and it may take as long as it likes (a lock that is waited for, news that are
    /// waited for): no deadline of its own.
    Waits,
}

/// Which service of a node a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Service {
    Management = 1,
    Metadata = 2,
    Storage = 3,
    /// The store of metadata, for metadata services elsewhere.
    KeyValue = 4,
    /// Metadata services among themselves.
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

    /// For messages.
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

/// Bytes that are no message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// What is wrong with them.
    pub cause: String,
}

impl Malformed {
    /// With its cause.
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
