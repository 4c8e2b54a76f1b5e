//! Damaged messages: what the fuzz target finds in hours, these find in moments, or it isn't found at all.

use super::feed::feed;
use super::round_trip::encoded;
use super::samples::samples;
use super::strategies;
use proptest::prelude::*;
use proptest::sample::Index;

#[test]
fn every_start_of_every_message_is_decoded_or_refused() {
    for sample in samples() {
        for length in 0..=sample.bytes.len() {
            feed(&sample.bytes[..length]);
        }
    }
}

#[test]
fn every_message_with_any_bit_flipped_is_decoded_or_refused() {
    for sample in samples() {
        for bit in 0..sample.bytes.len() * 8 {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            feed(&bytes);
        }
    }
}

/// A change somewhere in a message.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(u8),
    Set(u8),
    Insert(Vec<u8>),
    Remove(u8),
    /// Copies bytes from another place over these.
    Copy(Index, u8),
    Cut,
}

fn mutation() -> impl Strategy<Value = (Index, Mutation)> {
    let bytes = prop::collection::vec(prop_oneof![any::<u8>(), Just(0xff), Just(0x80)], 1..12);
    let kind = prop_oneof![
        4 => (0..8u8).prop_map(Mutation::Flip),
        4 => prop_oneof![any::<u8>(), Just(0), Just(0x7f), Just(0x80), Just(0xff)].prop_map(Mutation::Set),
        2 => bytes.prop_map(Mutation::Insert),
        2 => (1..16u8).prop_map(Mutation::Remove),
        2 => (any::<Index>(), 1..16u8).prop_map(|(from, count)| Mutation::Copy(from, count)),
        1 => Just(Mutation::Cut),
    ];
    (any::<Index>(), kind)
}

fn mutate(bytes: &mut Vec<u8>, place: Index, mutation: &Mutation) {
    if bytes.is_empty() {
        return;
    }
    let at = place.index(bytes.len());
    match mutation {
        Mutation::Flip(bit) => bytes[at] ^= 1 << bit,
        Mutation::Set(value) => bytes[at] = *value,
        Mutation::Insert(more) => drop(bytes.splice(at..at, more.iter().copied())),
        Mutation::Remove(count) => drop(bytes.drain(at..bytes.len().min(at + *count as usize))),
        Mutation::Copy(from, count) => {
            let from = from.index(bytes.len());
            let end = bytes.len().min(from + *count as usize);
            let copy = bytes[from..end].to_vec();
            let over = at..bytes.len().min(at + copy.len());
            bytes.splice(over, copy);
        }
        Mutation::Cut => bytes.truncate(at),
    }
}

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_messages_are_decoded_or_refused(
        mut bytes in messages(), mutations in prop::collection::vec(mutation(), 1..6),
    ) {
        for (place, mutation) in &mutations {
            mutate(&mut bytes, *place, mutation);
        }
        feed(&bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        feed(&bytes);
    }
}
