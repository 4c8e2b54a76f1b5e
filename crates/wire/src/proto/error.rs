//! The error that answers a request.

use super::fields;
use crate::{Malformed, Message, error_number};
use prost::Message as _;
use types::{Errno, Error};

/// Largest error number of Linux.
const MAX_ERRNO: u32 = 4095;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ErrorFields {
    #[prost(uint32, tag = "1")]
    errno: u32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(string, tag = "3")]
    hint: String,
}

impl From<&Error> for ErrorFields {
    fn from(Error { errno, message, hint }: &Error) -> ErrorFields {
        // The peer would refuse a number that isn't an errno.
        let number =
            u32::try_from(error_number(*errno)).ok().filter(|number| (1..=MAX_ERRNO).contains(number));
        let errno = number.unwrap_or(Errno::EIO.number() as u32);
        ErrorFields { errno, message: message.to_string(), hint: hint.to_string() }
    }
}

impl TryFrom<ErrorFields> for Error {
    type Error = Malformed;

    fn try_from(ErrorFields { errno, message, hint }: ErrorFields) -> Result<Error, Malformed> {
        match errno {
            1..=MAX_ERRNO => {
                Ok(Error { errno: Errno::Number(errno as i32), message: message.into(), hint: hint.into() })
            }
            _ => Err(Malformed::new(format!("an error with the number {errno}"))),
        }
    }
}

impl Message for Error {
    fn encode(&self, out: &mut Vec<u8>) {
        ErrorFields::from(self).encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<Error, Malformed> {
        fields::<ErrorFields>(bytes)?.try_into()
    }
}
