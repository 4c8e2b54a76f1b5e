//! Messages between clients, metadata and storage services.
//!
//! Pure. The messages are plain Rust types: in one process they are handed over as they are. Framing (versions,
//! checksums, protobuf bodies with raw payloads) belongs here too and comes with the first transport that needs it.
//! Data never travels inside a message: reads and writes carry it beside, as a payload buffer.

pub mod frame;
mod lease;
mod lock;
mod message;
mod meta;
mod proto;
mod storage;

pub use lease::{Grant, LeaseMode, Recall, Yield};
pub use lock::{LockKind, LockOwner, LockRange, LockSpace};
pub use message::{Answer, Malformed, Message, Request, Service};
pub use meta::{
    Description, DirEntry, FileInfo, MetaOp, MetaReply, MetaRequest, MetaResponse, PatternChange, RenameMode,
    WriteRecord, XattrMode,
};
pub use proto::{MAX_ENTRIES, MAX_LIST_ITEMS, MAX_NAME_BYTES};
pub use storage::{Allocate, Path, Seek, StorageOp, StorageReply, StorageRequest};
