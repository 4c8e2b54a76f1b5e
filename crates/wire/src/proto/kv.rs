//! Requests to the metadata store and their answers. Guards and writes of all batches are one list
//! each, so that they can't claim more memory than the limit of lists.

use super::common::{List, MAX_LIST_ITEMS, Numbered, bounded, numbered, required};
use super::fields;
use crate::authorization::{self, AuthorizationRule};
use crate::kv::{KvAnswer, KvBatch, KvOutcome, KvReply, KvRequest, MAX_KV_BATCHES};
use crate::{AnswerKind, Malformed, Message, Request, Service};
use bytes::Bytes;
use prost::Message as _;

// Numbers never change.
numbered! {
    KvOutcome, "outcome of a batch": Applied = 1, GuardFailed = 2, Unknown = 3;
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestFields {
    #[prost(oneof = "OpFields", tags = "10, 11, 12, 13")]
    op: Option<OpFields>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OpFields {
    #[prost(message, tag = "10")]
    Get(GetFields),
    #[prost(message, tag = "11")]
    Scan(ScanFields),
    #[prost(message, tag = "12")]
    Apply(ApplyFields),
    #[prost(message, tag = "13")]
    Persist(()),
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetFields {
    #[prost(message, optional, tag = "1")]
    keys: Option<List<ItemFields, MAX_LIST_ITEMS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScanFields {
    #[prost(bytes = "bytes", tag = "1")]
    from: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    to: Bytes,
    #[prost(uint64, tag = "3")]
    limit: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ApplyFields {
    #[prost(uint64, tag = "1")]
    writer: u64,
    #[prost(uint64, tag = "2")]
    number: u64,
    #[prost(message, optional, tag = "3")]
    batches: Option<List<BatchFields, MAX_KV_BATCHES>>,
    #[prost(message, optional, tag = "4")]
    guards: Option<List<ItemFields, MAX_LIST_ITEMS>>,
    #[prost(message, optional, tag = "5")]
    writes: Option<List<ItemFields, MAX_LIST_ITEMS>>,
    #[prost(uint64, tag = "6")]
    verifier: u64,
}

/// Number of guards and writes of a batch.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct BatchFields {
    #[prost(uint32, tag = "1")]
    guards: u32,
    #[prost(uint32, tag = "2")]
    writes: u32,
}

/// A key, a value, or both.
#[derive(Clone, PartialEq, prost::Message)]
struct ItemFields {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", optional, tag = "2")]
    value: Option<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReplyFields {
    #[prost(fixed64, tag = "1")]
    instance: u64,
    #[prost(fixed64, tag = "2")]
    verifier: u64,
    /// Only the rare value takes bytes.
    #[prost(bool, tag = "3")]
    is_full: bool,
    #[prost(oneof = "AnswerFields", tags = "10, 11, 12, 13")]
    answer: Option<AnswerFields>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnswerFields {
    #[prost(message, tag = "10")]
    Values(ItemsFields),
    #[prost(message, tag = "11")]
    Pairs(ItemsFields),
    #[prost(message, tag = "12")]
    Outcomes(OutcomesFields),
    #[prost(message, tag = "13")]
    Done(()),
}

#[derive(Clone, PartialEq, prost::Message)]
struct ItemsFields {
    #[prost(message, optional, tag = "1")]
    items: Option<List<ItemFields, MAX_LIST_ITEMS>>,
    #[prost(bool, tag = "2")]
    more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OutcomesFields {
    #[prost(uint32, repeated, tag = "1")]
    outcomes: Vec<u32>,
}

fn item((key, value): &(Bytes, Option<Bytes>)) -> ItemFields {
    ItemFields { key: key.clone(), value: value.clone() }
}

fn key(key: &Bytes) -> ItemFields {
    ItemFields { key: key.clone(), value: None }
}

impl From<&KvRequest> for OpFields {
    fn from(request: &KvRequest) -> OpFields {
        match request {
            KvRequest::Get { keys } => OpFields::Get(GetFields { keys: List::of(keys, key) }),
            KvRequest::Scan { from, to, limit } => {
                OpFields::Scan(ScanFields { from: from.clone(), to: to.clone(), limit: *limit })
            }
            KvRequest::Apply { writer, number, verifier, batches } => {
                let guards: Vec<_> = batches.iter().flat_map(|batch| batch.guards.iter().cloned()).collect();
                let writes: Vec<_> = batches.iter().flat_map(|batch| batch.writes.iter().cloned()).collect();
                let count = |batch: &KvBatch| BatchFields {
                    guards: batch.guards.len() as u32,
                    writes: batch.writes.len() as u32,
                };
                OpFields::Apply(ApplyFields {
                    writer: *writer,
                    number: *number,
                    batches: List::of(batches, count),
                    guards: List::of(&guards, item),
                    writes: List::of(&writes, item),
                    verifier: *verifier,
                })
            }
            KvRequest::Persist => OpFields::Persist(()),
        }
    }
}

impl TryFrom<OpFields> for KvRequest {
    type Error = Malformed;

    fn try_from(op: OpFields) -> Result<KvRequest, Malformed> {
        Ok(match op {
            OpFields::Get(f) => KvRequest::Get { keys: List::take(f.keys, |item| Ok(item.key))? },
            OpFields::Scan(f) => KvRequest::Scan { from: f.from, to: f.to, limit: f.limit },
            OpFields::Apply(f) => {
                let pair = |item: ItemFields| Ok((item.key, item.value));
                let batches = distribute(
                    List::take(f.batches, Ok)?,
                    List::take(f.guards, pair)?,
                    List::take(f.writes, pair)?,
                )?;
                KvRequest::Apply { writer: f.writer, number: f.number, verifier: f.verifier, batches }
            }
            OpFields::Persist(()) => KvRequest::Persist,
        })
    }
}

type Item = (Bytes, Option<Bytes>);

/// Distributes guards and writes to their batches.
fn distribute(
    counts: Vec<BatchFields>,
    guards: Vec<Item>,
    writes: Vec<Item>,
) -> Result<Vec<KvBatch>, Malformed> {
    let sum = |count: fn(&BatchFields) -> u32| counts.iter().map(|c| u64::from(count(c))).sum::<u64>();
    if sum(|c| c.guards) != guards.len() as u64 || sum(|c| c.writes) != writes.len() as u64 {
        return Err(Malformed::new("batches whose numbers of guards or writes don't add up"));
    }
    let (mut guards, mut writes) = (guards.into_iter(), writes.into_iter());
    let batch = |counts: BatchFields| KvBatch {
        guards: guards.by_ref().take(counts.guards as usize).collect(),
        writes: writes.by_ref().take(counts.writes as usize).collect(),
    };
    Ok(counts.into_iter().map(batch).collect())
}

impl Message for KvRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        RequestFields { op: Some(self.into()) }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<KvRequest, Malformed> {
        let RequestFields { op } = fields(bytes)?;
        required(op, "known request to the store")?.try_into()
    }
}

impl Request for KvRequest {
    const SERVICE: Service = Service::KeyValue;

    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::NoPayload
    }

    fn rule(&self) -> AuthorizationRule {
        authorization::key_value(self)
    }
}

impl Message for KvReply {
    fn encode(&self, out: &mut Vec<u8>) {
        let answer = match &self.answer {
            KvAnswer::Values(values) => {
                let value = |value: &Option<Bytes>| ItemFields { key: Bytes::new(), value: value.clone() };
                AnswerFields::Values(ItemsFields { items: List::of(values, value), more: false })
            }
            KvAnswer::Pairs { pairs, more } => {
                let pair = |(key, value): &(Bytes, Bytes)| item(&(key.clone(), Some(value.clone())));
                AnswerFields::Pairs(ItemsFields { items: List::of(pairs, pair), more: *more })
            }
            KvAnswer::Outcomes(outcomes) => {
                let outcomes = outcomes.iter().map(|outcome| outcome.number()).collect();
                AnswerFields::Outcomes(OutcomesFields { outcomes })
            }
            KvAnswer::Done => AnswerFields::Done(()),
        };
        let KvReply { instance, verifier, has_space: has_room, .. } = *self;
        ReplyFields { instance, verifier, is_full: !has_room, answer: Some(answer) }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<KvReply, Malformed> {
        let ReplyFields { instance, verifier, is_full, answer } = fields(bytes)?;
        let answer = match required(answer, "known answer of the store")? {
            AnswerFields::Values(f) => KvAnswer::Values(List::take(f.items, |item| Ok(item.value))?),
            AnswerFields::Pairs(f) => {
                let pair = |item: ItemFields| Ok((item.key, required(item.value, "value of a pair")?));
                KvAnswer::Pairs { pairs: List::take(f.items, pair)?, more: f.more }
            }
            AnswerFields::Outcomes(f) => {
                let outcomes = bounded(f.outcomes, "outcomes")?.into_iter().map(KvOutcome::take);
                KvAnswer::Outcomes(outcomes.collect::<Result<_, _>>()?)
            }
            AnswerFields::Done(()) => KvAnswer::Done,
        };
        Ok(KvReply { instance, verifier, has_space: !is_full, answer })
    }
}
