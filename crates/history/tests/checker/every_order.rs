//! Small histories of all kinds, judged by the search and by trying every order.

use history::log::{self, Observed};
use history::name::{Action as NameAction, Created, Found, Name, Unlinked};
use history::register::{self, Action as BlockAction, Register};
use history::search::search;
use history::{Event, Limits, Model, Operation, Record, Verdict, judge};
use proptest::prelude::*;

/// Whether an order explains the operations, by trying all: the next operation is any that no other
/// must precede, or an uncertain one is left out.
fn explained<M: Model>(model: &M, state: &M::State, left: &[Operation<M::Action>]) -> bool {
    if left.iter().all(|operation| operation.returned.is_none()) {
        return true;
    }
    let bound = left.iter().map(Operation::deadline).min().unwrap_or(u64::MAX);
    (0..left.len()).filter(|&next| left[next].called <= bound).any(|next| {
        let rest: Vec<_> = left
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != next)
            .map(|(_, operation)| operation.clone())
            .collect();
        model.step(state, &left[next].action).is_some_and(|state| explained(model, &state, &rest))
    })
}

/// Three callers with sequential operations, some with uncertain outcomes.
fn history<A: Clone + std::fmt::Debug>(
    action: impl Strategy<Value = A> + Clone,
    closed: impl Fn(&A) -> bool + Clone + 'static,
) -> impl Strategy<Value = Vec<Operation<A>>> {
    let caller = prop::collection::vec((1u64..8, 1u64..16, prop::bool::weighted(0.15), action), 0..3);
    prop::collection::vec(caller, 3).prop_map(move |callers| {
        let mut all = Vec::new();
        for (number, operations) in callers.into_iter().enumerate() {
            let mut now = 0;
            for (pause, length, open, action) in operations {
                now += pause;
                let open = open && !closed(&action);
                let returned = (!open).then_some(now + length);
                all.push(Operation { caller: format!("{number}"), called: now, returned, action });
                now += length;
            }
        }
        all
    })
}

fn block() -> impl Strategy<Value = BlockAction> + Clone {
    prop_oneof![(1u64..6).prop_map(BlockAction::Write), (0u64..4).prop_map(BlockAction::Read)]
}

fn name() -> impl Strategy<Value = NameAction> + Clone {
    prop_oneof![
        (1u64..4).prop_map(|inode| NameAction::Create(Created::New(Some(inode)))),
        Just(NameAction::Create(Created::New(None))),
        Just(NameAction::Create(Created::Exists)),
        Just(NameAction::Create(Created::Open)),
        Just(NameAction::Unlink(Unlinked::Done)),
        Just(NameAction::Unlink(Unlinked::Missing)),
        Just(NameAction::Unlink(Unlinked::Open)),
        (1u64..4).prop_map(|inode| NameAction::Lookup(Found::File(inode))),
        Just(NameAction::Lookup(Found::Missing)),
    ]
}

fn log_action() -> impl Strategy<Value = Observed> + Clone {
    let order = Just(vec![1u64, 2, 3, 4]).prop_shuffle();
    prop_oneof![
        (1u64..5).prop_map(Observed::Append),
        (order, 0usize..4).prop_map(|(order, length)| Observed::Read(order[..length].to_vec())),
    ]
}

/// A log as a list, whose order isn't known beforehand.
struct PlainLog;

impl Model for PlainLog {
    type Action = Observed;
    type State = Vec<u64>;

    fn initial(&self) -> Vec<u64> {
        Vec::new()
    }

    fn step(&self, state: &Vec<u64>, action: &Observed) -> Option<Vec<u64>> {
        match action {
            Observed::Append(record) => Some([state.clone(), vec![*record]].concat()),
            Observed::Read(records) => (records == state).then(|| state.clone()),
        }
    }

    fn is_read_only(&self, action: &Observed) -> bool {
        matches!(action, Observed::Read(_))
    }

    fn removable(&self, _operations: &[Operation<Observed>]) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn describe(&self, action: &Observed) -> String {
        format!("{action:?}")
    }

    fn describe_state(&self, state: &Vec<u64>) -> String {
        format!("{state:?}")
    }
}

/// Removes repeated writes of a value: histories need unique ones.
fn unique<A: Clone>(operations: Vec<Operation<A>>, value: impl Fn(&A) -> Option<u64>) -> Vec<Operation<A>> {
    let mut seen = std::collections::BTreeSet::new();
    operations
        .into_iter()
        .filter(|operation| value(&operation.action).is_none_or(|it| seen.insert(it)))
        .collect()
}

fn record(operation: &Operation<impl Sized>, event: Event) -> Record {
    Record {
        client: 0,
        thread: 0,
        object: "it".to_string(),
        called_ns: operation.called,
        returned_ns: operation.returned,
        event,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn of_blocks(operations in history(block(), |action| matches!(action, BlockAction::Read(_)))) {
        let operations = unique(operations, |action| match action {
            BlockAction::Write(value) => Some(*value),
            BlockAction::Read(_) => None,
        });
        let truth = explained(&Register, &register::ZEROS, &operations);
        prop_assert_eq!(search(&Register, &operations, 100_000) == Verdict::Linearizable, truth);
        // Also through the public function, which removes operations before the search.
        let records: Vec<Record> = operations.iter().map(|operation| record(operation, match operation.action {
            BlockAction::Write(value) => Event::Write { value },
            BlockAction::Read(value) => Event::Read { value },
        })).collect();
        prop_assert_eq!(judge(&records, Limits::default()).is_linearizable(), truth);
    }

    #[test]
    fn of_names(operations in history(name(), |action| {
        !matches!(action, NameAction::Create(Created::Open) | NameAction::Unlink(Unlinked::Open))
    })) {
        let truth = explained(&Name, &Name.initial(), &operations);
        prop_assert_eq!(search(&Name, &operations, 100_000) == Verdict::Linearizable, truth);
    }

    #[test]
    fn of_logs(operations in history(log_action(), |action| matches!(action, Observed::Read(_)))) {
        let operations = unique(operations, |action| match action {
            Observed::Append(record) => Some(*record),
            Observed::Read(_) => None,
        });
        let truth = explained(&PlainLog, &Vec::new(), &operations);
        let found = match log::prepare(operations) {
            Ok((model, operations)) => search(&model, &operations, 100_000) == Verdict::Linearizable,
            Err(_) => false,
        };
        prop_assert_eq!(found, truth);
    }
}
