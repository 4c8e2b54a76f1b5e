//! How messages are written: protobuf, so that fields and kinds of requests can be added.
//!
//! Each public type has a private twin whose fields are the message's fields; a field's number is
//! fixed for ever, and so is what it means. A field that is not known is passed over, but a kind of
//! request, an enum's value or a missing part can't be: the message is then [`Malformed`]. What the
//! rest of the program relies on (a known file type, a range that isn't inverted, a layout with
//! groups) is checked here, once.
//!
//! Enums are numbers from 1, so that an absent one isn't taken for the first.

mod common;
mod error;
mod kv;
mod meta;
mod meta_args;
mod meta_op;
mod meta_reply;
mod partitions;
mod room;
mod storage;

pub(crate) use common::name as bounded_name;
pub use common::{MAX_ENTRIES, MAX_LIST_ITEMS, MAX_NAME_BYTES};

use crate::Malformed;

/// Takes the fields of a message out of its bytes.
pub(crate) fn fields<F: prost::Message + Default>(bytes: impl prost::bytes::Buf) -> Result<F, Malformed> {
    F::decode(bytes).map_err(|error| Malformed::new(error.to_string()))
}
