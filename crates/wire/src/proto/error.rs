//! The error that answers a request.

use super::fields;
use crate::{Malformed, Message};
use prost::Message as _;
use types::{Errno, Error};

/// The largest error number that Linux knows.
const MAX_ERRNO: u32 = 4095;

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorFields {
    #[prost(uint32, tag = "1")]
    errno: u32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(string, tag = "3")]
    hint: String,
}

impl Message for Error {
    fn encode(&self, out: &mut Vec<u8>) {
        let Error { errno, message, hint } = self;
        // A number that no program could read as an error would not be taken by the other side.
        let number = u32::try_from(errno.0).ok().filter(|number| (1..=MAX_ERRNO).contains(number));
        let errno = number.unwrap_or(Errno::EIO.0 as u32);
        ErrorFields { errno, message: message.to_string(), hint: hint.to_string() }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<Error, Malformed> {
        let ErrorFields { errno, message, hint } = fields(bytes)?;
        match errno {
            1..=MAX_ERRNO => {
                Ok(Error { errno: Errno(errno as i32), message: message.into(), hint: hint.into() })
            }
            _ => Err(Malformed::new(format!("an error with the number {errno}"))),
        }
    }
}
