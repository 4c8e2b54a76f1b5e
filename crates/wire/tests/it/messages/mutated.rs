//! Mutated messages: a short form of the fuzz target.

use super::round_trip::encoded;
use super::samples::samples;
use super::strategies;
use proptest::prelude::*;
use types::{NodeId, Role};
use wire::MgmtRequest;
use wire::fuzzing::messages as feed;

#[test]
fn truncated_messages_never_panic() {
    for sample in samples() {
        mutate::cuts(&sample.bytes, feed);
        feed(&sample.bytes);
    }
}

#[test]
fn every_message_with_any_bit_flipped_is_decoded_or_refused() {
    for sample in samples() {
        mutate::flips(&sample.bytes, feed);
    }
}

/// Largest number of changes to one message.
const MAX_CHANGES: usize = 5;

fn messages() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        strategies::meta_requests().prop_map(|message| encoded(&message)),
        strategies::meta_responses().prop_map(|message| encoded(&message)),
        strategies::storage_requests().prop_map(|message| encoded(&message)),
        strategies::storage_replies().prop_map(|message| encoded(&message)),
        proptest::strategy::Union::new(strategies::partitions_requests())
            .prop_map(|message| encoded(&message)),
        strategies::partitions_replies().prop_map(|message| encoded(&message)),
        strategies::kv_requests().prop_map(|message| encoded(&message)),
        strategies::kv_replies().prop_map(|message| encoded(&message)),
        strategies::errors().prop_map(|message| encoded(&message)),
    ]
}

#[test]
fn damaged_messages_of_management_are_decoded_or_refused() {
    mutate::confined(|| {
        let requests = [
            MgmtRequest::Attach { cluster: "c".into(), version: "0.1.0".into(), clock_s: -7 },
            MgmtRequest::AddTarget { node: NodeId(3), path: "/srv/t \"1\"".into(), pool: "default".into() },
            MgmtRequest::node_change_request(NodeId(3), Some("n".into()), Some(None), Some(vec![Role::Meta]))
                .expect("a change"),
        ];
        for request in requests {
            mutate::damage(&encoded(&request), 1000, feed);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_messages_are_decoded_or_refused(
        mut bytes in messages(), seed: u64, changes in 1..=MAX_CHANGES,
    ) {
        let mut random = mutate::Random::new(seed);
        for _ in 0..changes {
            mutate::change(&mut bytes, &mut random);
        }
        feed(&bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        feed(&bytes);
    }
}
