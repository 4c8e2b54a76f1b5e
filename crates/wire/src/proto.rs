//! Encoding of messages: protobuf, so that fields and kinds of requests can be added.
//!
//! Each public type has a private twin whose fields are the message's fields; a field's number and
//! meaning never change. Unknown fields are ignored, but an unknown kind of request or enum value,
//! or a missing part, makes the message [`Malformed`]. Guarantees that other crates rely on (a
//! known file type, a range that isn't inverted, a layout with groups) are checked here, once.
//!
//! Enums are numbers from 1, so that an absent one isn't taken for the first value.

mod common;
mod error;
mod kv;
mod meta;
mod meta_args;
mod meta_op;
mod meta_reply;
mod partitions;
mod space;
mod storage;

pub(crate) use common::name as bounded_name;
pub use common::{MAX_ENTRIES, MAX_LIST_ITEMS, MAX_NAME_BYTES};

use crate::Malformed;

/// Decodes the fields of a message.
pub(crate) fn fields<F: prost::Message + Default>(bytes: impl prost::bytes::Buf) -> Result<F, Malformed> {
    F::decode(bytes).map_err(|error| Malformed::new(error.to_string()))
}
