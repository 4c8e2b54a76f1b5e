//! Round trips: a decoded message equals the encoded one.

use super::strategies;
use super::walk;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeSet;
use std::fmt::Debug;
use types::{ChunkFileId, Credentials, SessionId, TargetId};
use wire::{AnswerKind, Malformed, Message, MetaOp, MetaRequest, MetaResponse, Request, Service};
use wire::{KvReply, KvRequest, PartitionsReply, PartitionsRequest, StorageOp, StorageReply, StorageRequest};

pub fn encoded(message: &impl Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn comes_back<M: Message + PartialEq + Debug>(message: M) {
    let mut out = b"before".to_vec();
    message.encode(&mut out);
    assert_eq!(&out[..6], b"before");
    assert_eq!(M::decode(&out[6..]), Ok(message));
}

proptest! {
    #[test]
    fn meta_requests(request in strategies::meta_requests()) {
        comes_back(request);
    }

    #[test]
    fn meta_responses(response in strategies::meta_responses()) {
        comes_back(response);
    }

    #[test]
    fn storage_requests(request in strategies::storage_requests()) {
        comes_back(request);
    }

    #[test]
    fn storage_replies(reply in strategies::storage_replies()) {
        comes_back(reply);
    }

    #[test]
    fn kv_requests(request in strategies::kv_requests()) {
        comes_back(request);
    }

    #[test]
    fn kv_replies(reply in strategies::kv_replies()) {
        comes_back(reply);
    }

    #[test]
    fn partitions_requests(request in union(strategies::partitions_requests())) {
        comes_back(request);
    }

    #[test]
    fn partitions_replies(reply in strategies::partitions_replies()) {
        comes_back(reply);
    }

    #[test]
    fn errors(error in strategies::errors()) {
        comes_back(error);
    }
}

/// Draws from all kinds.
fn union<T: Debug + 'static>(kinds: Vec<BoxedStrategy<T>>) -> impl Strategy<Value = T> {
    proptest::strategy::Union::new(kinds)
}

fn meta_request(op: MetaOp) -> MetaRequest {
    MetaRequest {
        session: SessionId(1),
        slot_sequence: None,
        credentials: Credentials::default(),
        privileged: false,
        op,
    }
}

fn storage_request(op: StorageOp) -> StorageRequest {
    StorageRequest::new(SessionId(1), TargetId(1), ChunkFileId(1), op)
}

/// Field numbers of the kinds that a decoder knows, found by trying them.
fn known<M: Message + Debug>(start: &[u8]) -> BTreeSet<u32> {
    let unknown = |error: &Malformed| error.cause.starts_with("no known ");
    let knows = |kind: &u32| {
        let message = [start, &walk::delimited(*kind, &[])[..]].concat();
        M::decode(&message).map_or_else(|error| !unknown(&error), |_| true)
    };
    (10..200).filter(knows).collect()
}

/// Field numbers of the kinds in encoded messages.
fn written(messages: impl IntoIterator<Item = Vec<u8>>) -> BTreeSet<u32> {
    let kind = |bytes: Vec<u8>| walk::fields(&bytes).last().expect("a kind").number;
    messages.into_iter().map(kind).collect()
}

fn any_of<T: Debug>(strategy: &impl Strategy<Value = T>, runner: &mut TestRunner) -> T {
    strategy.new_tree(runner).expect("a value").current()
}

/// Fails if a new kind is missing in these tests.
#[test]
fn every_kind_is_tested() {
    let runner = &mut TestRunner::deterministic();
    let ops = strategies::meta_ops();
    let requests = ops.iter().map(|op| encoded(&meta_request(any_of(op, runner))));
    assert_eq!(known::<MetaRequest>(&walk::delimited(3, &[])), written(requests));

    let runner = &mut TestRunner::deterministic();
    let replies = strategies::meta_replies();
    let responses = replies.iter().map(|reply| encoded(&MetaResponse::from(any_of(reply, runner))));
    assert_eq!(known::<MetaResponse>(&[]), written(responses));

    let runner = &mut TestRunner::deterministic();
    let ops = strategies::storage_ops();
    let requests = ops.iter().map(|op| encoded(&storage_request(any_of(op, runner))));
    assert_eq!(known::<StorageRequest>(&[]), written(requests));

    let runner = &mut TestRunner::deterministic();
    let replies = (0..100).map(|_| encoded(&any_of(&strategies::storage_replies(), runner)));
    assert_eq!(known::<StorageReply>(&[]), written(replies));

    let runner = &mut TestRunner::deterministic();
    let asks = strategies::partitions_requests();
    let requests = asks.iter().map(|ask| encoded(&any_of(ask, runner)));
    assert_eq!(known::<PartitionsRequest>(&[]), written(requests));

    let runner = &mut TestRunner::deterministic();
    let replies = (0..100).map(|_| encoded(&any_of(&strategies::partitions_replies(), runner)));
    assert_eq!(known::<PartitionsReply>(&[]), written(replies));

    let runner = &mut TestRunner::deterministic();
    let requests =
        strategies::kv_kinds().iter().map(|kind| encoded(&any_of(kind, runner))).collect::<Vec<_>>();
    assert_eq!(known::<KvRequest>(&[]), written(requests.into_iter()));

    let runner = &mut TestRunner::deterministic();
    let replies = (0..100).map(|_| encoded(&any_of(&strategies::kv_replies(), runner)));
    assert_eq!(known::<KvReply>(&[]), written(replies));
}

#[test]
fn requests_have_the_properties_that_transports_need() {
    assert_eq!((MetaRequest::SERVICE, StorageRequest::SERVICE), (Service::Metadata, Service::Storage));
    assert_eq!(PartitionsRequest::SERVICE, Service::Partitions);
    assert_eq!(KvRequest::SERVICE, Service::KeyValue);
    let runner = &mut TestRunner::deterministic();
    for op in strategies::meta_ops() {
        let request = meta_request(any_of(&op, runner));
        let expected = match request.op {
            MetaOp::NextRecalls { .. } | MetaOp::Lock { wait: true, .. } => AnswerKind::Unbounded,
            _ => AnswerKind::NoPayload,
        };
        assert_eq!(request.answer_kind(), expected, "{request:?}");
    }
    for op in strategies::storage_ops() {
        let request = storage_request(any_of(&op, runner));
        let expected = match request.op {
            StorageOp::Read { .. } => AnswerKind::FillsPayload,
            StorageOp::Measure { .. } => AnswerKind::Unbounded,
            _ => AnswerKind::NoPayload,
        };
        assert_eq!(request.answer_kind(), expected, "{request:?}");
    }
}
