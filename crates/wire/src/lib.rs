//! Messages between clients, metadata and storage services, and their encoding.
//!
//! Pure. The messages are plain Rust types: within a process they are passed as they are. Between
//! processes each is the protobuf body of a [`frame`], and the data of reads and writes is the
//! frame's payload: data never travels inside a message.
//!
//! Invariants:
//! - [`Message::decode`] accepts any bytes: it doesn't panic and allocates no more memory than a
//!   small multiple of their length. Decoded messages have known kinds and values, times with
//!   nanoseconds below a second, ranges that aren't inverted, and layouts with groups. The service
//!   checks whether a name or a size is allowed.
//! - Bytes of version 1 keep their meaning: numbers of fields, kinds and values are fixed, and
//!   `tests/golden` has an image of each message. Unknown fields are ignored.
//! - The body of a request has at most [`frame::MAX_BODY_BYTES`], that of an answer
//!   [`frame::MAX_ANSWER_BYTES`], a list at most [`MAX_ENTRIES`] or [`MAX_LIST_ITEMS`]; the sender
//!   respects these limits.
//!
//! ```
//! use types::{ChunkFileId, SessionId, TargetId};
//! use wire::frame::{FrameKind, Header};
//! use wire::{DataPath, Message, Request, StorageOp, StorageRequest};
//!
//! let op = StorageOp::Read { offset: 4096, path: DataPath::Cached };
//! let request = StorageRequest::new(SessionId(7), TargetId(12), ChunkFileId(77), op);
//! let mut body = Vec::new();
//! request.encode(&mut body);
//! let service = StorageRequest::SERVICE as u8;
//! let header = Header::new(FrameKind::Request, 1).with_body(&body);
//! let header = Header { service, reply_payload_bytes: 65536, ..header };
//!
//! let received = Header::decode(&header.encode())?;
//! received.check_body(&body)?;
//! assert_eq!(StorageRequest::decode(&body)?, request);
//! # Ok::<(), wire::Malformed>(())
//! ```

pub mod authorization;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod kv;
mod lease;
mod lock;
mod message;
mod meta;
pub mod mgmt;
mod partitions;
mod proto;
mod refusal;
pub mod spec;
mod storage;

pub use kv::{KvAnswer, KvBatch, KvOutcome, KvReply, KvRequest, MAX_KV_BATCHES};
pub use lease::{LeaseGrant, LeaseMode, Recall, RecallAck, ReportedSize};
pub use lock::{HeldLock, LockFamily, LockKind, LockOwner, LockRange};
pub use message::{AnswerKind, Malformed, Message, Request, Service};
pub use meta::{
    AccessTime, AsyncChange, AsyncCreate, BegunWrite, DirEntry, DirectoryState, EntryDescription, FileInfo,
    MAX_RECLAIMED, MetaOp, MetaReply, MetaRequest, MetaResponse, MetadataUsage, Migration, PatternChange,
    PendingFile, RenameMode, StoreSpace, WriteRecord, XattrMode,
};
pub use mgmt::{MgmtReply, MgmtRequest};
pub use partitions::{InodeAccess, PartitionsReply, PartitionsRequest};
pub use proto::{MAX_ENTRIES, MAX_LIST_ITEMS, MAX_NAME_BYTES};
pub use refusal::{errno_of, error_number, error_of};
pub use storage::{
    AllocateMode, CAPABILITY_BYTES, Capability, DIRTY_REGION_BYTES, DataPath, GroupContext, GroupRole,
    MAX_GAPS, MAX_RATES, MAX_REGIONS, MAX_SURVEYED, Measure, MeasuredRate, MemberSpace, RateQuantity,
    RegionSelection, RepairResult, ReplicaState, ReservationSpace, SeekTarget, SlotSequence, StorageOp,
    StorageReply, StorageRequest,
};
