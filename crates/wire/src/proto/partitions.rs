//! Requests between metadata services.

use super::common::{List, MAX_LIST_ITEMS, Numbered, bounded, name, numbered};
use super::{common::required, fields};
use crate::authorization::{self, AuthorizationRule};
use crate::mgmt::ReconcileFiles;
use crate::partitions::{InodeAccess, PartitionsReply, PartitionsRequest};
use crate::{AnswerKind, Malformed, Message, Request, Service};
use bytes::Bytes;
use prost::Message as _;
use types::{ChunkFileId, GroupId, InodeId, PartitionId, PoolId, SessionId, TargetId};

// Numbers never change.
numbered! {
    InodeAccess, "access to an inode": Read = 1, SharedWrite = 2, Write = 3;
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestFields {
    #[prost(oneof = "OpFields", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21")]
    op: Option<OpFields>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OpFields {
    #[prost(message, tag = "10")]
    LockPartition(LockFields),
    #[prost(message, tag = "11")]
    UnlockPartition(LockFields),
    #[prost(message, tag = "12")]
    RecallConflicting(RecallConflictingFields),
    #[prost(message, tag = "13")]
    Ended(SessionFields),
    #[prost(message, tag = "14")]
    Reconcile(ReconcileFields),
    #[prost(message, tag = "15")]
    FileOn(FileOnFields),
    #[prost(message, tag = "16")]
    Sessions(()),
    #[prost(message, tag = "17")]
    Evict(SessionFields),
    #[prost(message, tag = "18")]
    Executed(()),
    #[prost(message, tag = "19")]
    Drains(()),
    #[prost(message, tag = "20")]
    FindPoolReference(FindPoolReferenceFields),
    #[prost(message, tag = "21")]
    ReconcileGroup(ReconcileGroupFields),
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockFields {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(fixed64, tag = "2")]
    token: u64,
    #[prost(message, optional, tag = "3")]
    written: Option<List<KeyFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyFields {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RecallConflictingFields {
    #[prost(uint64, tag = "1")]
    session: u64,
    #[prost(message, optional, tag = "2")]
    accesses: Option<List<AccessFields, MAX_LIST_ITEMS>>,
    #[prost(bool, tag = "3")]
    wait: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AccessFields {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(uint32, tag = "2")]
    access: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SessionFields {
    #[prost(uint64, tag = "1")]
    session: u64,
}

/// Range of inode numbers in which chunk files were being created.
#[derive(Clone, PartialEq, prost::Message)]
struct NewFields {
    #[prost(uint64, tag = "1")]
    from: u64,
    #[prost(uint64, tag = "2")]
    up_to: u64,
}

fn touched(
    files: Vec<u64>,
    new: Option<List<NewFields, MAX_LIST_ITEMS>>,
) -> Result<ReconcileFiles, Malformed> {
    let files = bounded(files, "files to reconcile")?.into_iter().map(ChunkFileId).collect();
    let new = List::take(new, |f| Ok((ChunkFileId(f.from), ChunkFileId(f.up_to))))?;
    Ok(ReconcileFiles { files, new })
}

/// Absent if there are none, as in versions that didn't know them.
fn new_fields(touched: &ReconcileFiles) -> Option<List<NewFields, MAX_LIST_ITEMS>> {
    let fields = |(from, up_to): &(ChunkFileId, ChunkFileId)| NewFields { from: from.0, up_to: up_to.0 };
    if touched.new.is_empty() { None } else { List::of(&touched.new, fields) }
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReconcileGroupFields {
    #[prost(uint32, tag = "1")]
    group: u32,
    #[prost(uint64, repeated, tag = "2")]
    files: Vec<u64>,
    #[prost(message, optional, tag = "3")]
    new: Option<List<NewFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReconcileFields {
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint64, repeated, tag = "2")]
    files: Vec<u64>,
    #[prost(message, optional, tag = "3")]
    new: Option<List<NewFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileOnFields {
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint32, tag = "2")]
    partition: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FindPoolReferenceFields {
    #[prost(uint32, tag = "1")]
    pool: u32,
    #[prost(uint32, tag = "2")]
    partition: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReplyFields {
    #[prost(oneof = "AnswerFields", tags = "10, 11, 12, 13, 14, 15, 16")]
    answer: Option<AnswerFields>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnswerFields {
    #[prost(message, tag = "10")]
    Done(()),
    #[prost(message, tag = "11")]
    Locked(LockedFields),
    #[prost(bool, tag = "12")]
    Clear(bool),
    #[prost(message, tag = "13")]
    File(FileFields),
    /// JSON, as management shows them.
    #[prost(string, tag = "14")]
    Sessions(String),
    #[prost(message, tag = "15")]
    Executed(ExecutedFields),
    /// JSON, as management shows them.
    #[prost(string, tag = "16")]
    Drains(String),
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockedFields {
    #[prost(bytes = "bytes", tag = "1")]
    owner: Bytes,
    #[prost(bool, tag = "2")]
    no_leases: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileFields {
    #[prost(uint64, optional, tag = "1")]
    ino: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExecutedFields {
    #[prost(uint32, repeated, tag = "1")]
    partitions: Vec<u32>,
}

fn partition(number: u32) -> Result<PartitionId, Malformed> {
    let number =
        u16::try_from(number).map_err(|_| Malformed::new(format!("impossible partition {number}")))?;
    Ok(PartitionId(number))
}

fn access((ino, access): &(InodeId, InodeAccess)) -> AccessFields {
    AccessFields { ino: ino.0, access: access.number() }
}

impl From<&PartitionsRequest> for OpFields {
    fn from(request: &PartitionsRequest) -> OpFields {
        match request {
            PartitionsRequest::LockPartition { partition, token } => OpFields::LockPartition(LockFields {
                partition: partition.0.into(),
                token: *token,
                written: None,
            }),
            PartitionsRequest::UnlockPartition { partition, token, written } => {
                let written = List::of(written, |key| KeyFields { key: key.clone() });
                OpFields::UnlockPartition(LockFields {
                    partition: partition.0.into(),
                    token: *token,
                    written,
                })
            }
            PartitionsRequest::RecallConflicting { session, accesses, wait } => {
                OpFields::RecallConflicting(RecallConflictingFields {
                    session: session.0,
                    accesses: List::of(accesses, access),
                    wait: *wait,
                })
            }
            PartitionsRequest::Ended { session } => OpFields::Ended(SessionFields { session: session.0 }),
            PartitionsRequest::Reconcile { target, touched } => {
                let files = touched.files.iter().map(|ino| ino.0).collect();
                OpFields::Reconcile(ReconcileFields { target: target.0, files, new: new_fields(touched) })
            }
            PartitionsRequest::ReconcileGroup { group, touched } => {
                let files = touched.files.iter().map(|ino| ino.0).collect();
                OpFields::ReconcileGroup(ReconcileGroupFields {
                    group: group.0,
                    files,
                    new: new_fields(touched),
                })
            }
            PartitionsRequest::FileOn { target, partition } => {
                OpFields::FileOn(FileOnFields { target: target.0, partition: partition.0.into() })
            }
            PartitionsRequest::FindPoolReference { pool, partition } => {
                OpFields::FindPoolReference(FindPoolReferenceFields {
                    pool: pool.0.into(),
                    partition: partition.0.into(),
                })
            }
            PartitionsRequest::Sessions => OpFields::Sessions(()),
            PartitionsRequest::Evict { session } => OpFields::Evict(SessionFields { session: session.0 }),
            PartitionsRequest::Executed => OpFields::Executed(()),
            PartitionsRequest::Drains => OpFields::Drains(()),
        }
    }
}

impl TryFrom<OpFields> for PartitionsRequest {
    type Error = Malformed;

    fn try_from(op: OpFields) -> Result<PartitionsRequest, Malformed> {
        Ok(match op {
            OpFields::LockPartition(f) => {
                PartitionsRequest::LockPartition { partition: partition(f.partition)?, token: f.token }
            }
            OpFields::UnlockPartition(f) => PartitionsRequest::UnlockPartition {
                partition: partition(f.partition)?,
                token: f.token,
                written: List::take(f.written, |f| name(f.key))?,
            },
            OpFields::RecallConflicting(f) => PartitionsRequest::RecallConflicting {
                session: SessionId(f.session),
                accesses: List::take(f.accesses, |f| Ok((InodeId(f.ino), InodeAccess::take(f.access)?)))?,
                wait: f.wait,
            },
            OpFields::Ended(f) => PartitionsRequest::Ended { session: SessionId(f.session) },
            OpFields::Reconcile(f) => {
                PartitionsRequest::Reconcile { target: TargetId(f.target), touched: touched(f.files, f.new)? }
            }
            OpFields::ReconcileGroup(f) => PartitionsRequest::ReconcileGroup {
                group: GroupId(f.group),
                touched: touched(f.files, f.new)?,
            },
            OpFields::FileOn(f) => {
                PartitionsRequest::FileOn { target: TargetId(f.target), partition: partition(f.partition)? }
            }
            OpFields::FindPoolReference(f) => {
                let pool = u16::try_from(f.pool)
                    .map_err(|_| Malformed::new(format!("impossible pool {}", f.pool)))?;
                PartitionsRequest::FindPoolReference {
                    pool: PoolId(pool),
                    partition: partition(f.partition)?,
                }
            }
            OpFields::Sessions(()) => PartitionsRequest::Sessions,
            OpFields::Evict(f) => PartitionsRequest::Evict { session: SessionId(f.session) },
            OpFields::Executed(()) => PartitionsRequest::Executed,
            OpFields::Drains(()) => PartitionsRequest::Drains,
        })
    }
}

impl Message for PartitionsRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        RequestFields { op: Some(self.into()) }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<PartitionsRequest, Malformed> {
        let RequestFields { op } = fields(bytes)?;
        required(op, "known request of a metadata service")?.try_into()
    }
}

impl Request for PartitionsRequest {
    const SERVICE: Service = Service::Partitions;

    fn answer_kind(&self) -> AnswerKind {
        match self {
            // The duration of these depends on others; the caller has its own deadline.
            PartitionsRequest::RecallConflicting { wait: true, .. }
            | PartitionsRequest::Reconcile { .. }
            | PartitionsRequest::ReconcileGroup { .. }
            | PartitionsRequest::FileOn { .. }
            | PartitionsRequest::FindPoolReference { .. } => AnswerKind::Unbounded,
            _ => AnswerKind::NoPayload,
        }
    }

    fn rule(&self) -> AuthorizationRule {
        authorization::partitions(self)
    }
}

impl Message for PartitionsReply {
    fn encode(&self, out: &mut Vec<u8>) {
        let answer = match self {
            PartitionsReply::Done => AnswerFields::Done(()),
            PartitionsReply::Locked { owner, no_leases } => {
                AnswerFields::Locked(LockedFields { owner: owner.clone(), no_leases: *no_leases })
            }
            PartitionsReply::Clear(clear) => AnswerFields::Clear(*clear),
            PartitionsReply::File(ino) => AnswerFields::File(FileFields { ino: ino.map(|ino| ino.0) }),
            PartitionsReply::Sessions(sessions) => {
                let json = serde_json::to_string(sessions).expect("sessions have string keys only");
                AnswerFields::Sessions(json)
            }
            PartitionsReply::Executed(partitions) => {
                let partitions = partitions.iter().map(|partition| partition.0.into()).collect();
                AnswerFields::Executed(ExecutedFields { partitions })
            }
            PartitionsReply::Drains(drains) => {
                let json = serde_json::to_string(drains).expect("drains have string keys only");
                AnswerFields::Drains(json)
            }
        };
        ReplyFields { answer: Some(answer) }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<PartitionsReply, Malformed> {
        let ReplyFields { answer } = fields(bytes)?;
        Ok(match required(answer, "known answer of a metadata service")? {
            AnswerFields::Done(()) => PartitionsReply::Done,
            AnswerFields::Locked(f) => {
                PartitionsReply::Locked { owner: name(f.owner)?, no_leases: f.no_leases }
            }
            AnswerFields::Clear(clear) => PartitionsReply::Clear(clear),
            AnswerFields::File(f) => PartitionsReply::File(f.ino.map(InodeId)),
            AnswerFields::Sessions(json) => {
                let sessions = serde_json::from_str(&json);
                PartitionsReply::Sessions(sessions.map_err(|e| Malformed::new(e.to_string()))?)
            }
            AnswerFields::Executed(f) => {
                let partitions = bounded(f.partitions, "partitions")?.into_iter().map(partition);
                PartitionsReply::Executed(partitions.collect::<Result<_, _>>()?)
            }
            AnswerFields::Drains(json) => {
                let drains = serde_json::from_str(&json);
                PartitionsReply::Drains(drains.map_err(|e| Malformed::new(e.to_string()))?)
            }
        })
    }
}
