//! The engine on disk behaves like the one in memory.

use kv::{Batch, Embedded, Engine, Guard, Memory};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Batch>),
    Persist,
    Reopen,
    Scan(u8, u8, usize),
}

/// Few keys, so that writes and guards collide.
fn key() -> impl Strategy<Value = Vec<u8>> {
    (0u8..12).prop_map(|k| vec![k, 0xff, k])
}

fn content() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![1 => Just(None), 3 => (0u8..3).prop_map(|v| Some(vec![v; 1 + v as usize * 3000]))]
}

fn batch() -> impl Strategy<Value = Batch> {
    let guards = prop::collection::vec((key(), content()), 0..2);
    let writes = prop::collection::vec((key(), content()), 0..5);
    (guards, writes).prop_map(|(guards, writes)| Batch {
        guards: guards.into_iter().map(|(key, v)| Guard { key, expected: v.map(Into::into) }).collect(),
        writes: writes.into_iter().map(|(key, v)| (key, v.map(Into::into))).collect(),
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop::collection::vec(batch(), 0..6).prop_map(Step::Apply),
        1 => Just(Step::Persist),
        1 => Just(Step::Reopen),
        3 => (0u8..13, 0u8..13, 0usize..8).prop_map(|(from, to, limit)| Step::Scan(from, to, limit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn embedded_equals_memory(steps in prop::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new();
        let mut embedded = Some(Embedded::open(dir.path()).unwrap());
        for step in steps {
            let engine = embedded.as_ref().unwrap();
            match step {
                Step::Apply(batches) => {
                    prop_assert_eq!(engine.apply(&batches).unwrap(), memory.apply(&batches).unwrap());
                }
                Step::Persist => engine.persist().unwrap(),
                Step::Reopen => {
                    drop(embedded.take());
                    embedded = Some(Embedded::open(dir.path()).unwrap());
                }
                Step::Scan(from, to, limit) => {
                    let found = engine.scan(&[from], &[to], limit).unwrap();
                    prop_assert_eq!(found, memory.scan(&[from], &[to], limit).unwrap());
                }
            }
        }
        let all = embedded.unwrap().scan(&[], &[0xff; 4], usize::MAX).unwrap();
        prop_assert_eq!(all, memory.scan(&[], &[0xff; 4], usize::MAX).unwrap());
    }
}
