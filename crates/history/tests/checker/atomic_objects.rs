//! Long histories of an object that is atomic by construction are accepted; with one stale answer
//! they are rejected.

use crate::notation::report;
use history::{Event, Record};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The next step of a caller: pause, time until the effect, time until the return, operation, and
/// whether the answer is lost.
type Step = (u64, u64, u64, u8, bool);

/// An operation in progress, with the time of its effect.
struct Planned {
    effect: u64,
    client: u32,
    called: u64,
    returned: Option<u64>,
    what: u8,
    /// Whether it takes effect: an operation whose answer is lost may not.
    happens: bool,
}

fn plan(callers: &[Vec<Step>]) -> Vec<Planned> {
    let mut plan = Vec::new();
    for (client, steps) in (0u32..).zip(callers) {
        let mut now = 0;
        for &(pause, before, after, what, lost) in steps {
            let called = now + pause;
            let effect = called + before;
            now = effect + after;
            // An odd pause decides it, like a coin.
            let happens = !lost || pause % 2 == 0;
            plan.push(Planned { effect, client, called, returned: (!lost).then_some(now), what, happens });
        }
    }
    plan.sort_by_key(|planned| planned.effect);
    plan
}

fn callers() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = (1u64..40, 0u64..60, 0u64..60, 0u8..8, prop::bool::weighted(0.05));
    prop::collection::vec(prop::collection::vec(step, 1..60), 1..6)
}

fn finish(planned: &Planned, event: Event) -> Record {
    Record {
        client: planned.client,
        thread: 0,
        object: "it".to_string(),
        called_ns: planned.called,
        returned_ns: planned.returned,
        event,
    }
}

fn block_history(callers: &[Vec<Step>]) -> Vec<Record> {
    let mut content = 0;
    let mut history = Vec::new();
    for (value, planned) in (1..).zip(plan(callers)) {
        let event = if planned.what < 3 {
            if planned.happens {
                content = value;
            }
            Event::Write { value }
        } else {
            Event::Read { value: content }
        };
        history.push(finish(&planned, event));
    }
    history
}

fn name_history(callers: &[Vec<Step>]) -> Vec<Record> {
    let mut file = None;
    let mut history = Vec::new();
    for (inode, planned) in (1..).zip(plan(callers)) {
        let event = match (planned.what, file) {
            (0..=1, _) if planned.returned.is_none() => {
                if planned.happens && file.is_none() {
                    file = Some(inode);
                }
                Event::Create { inode: None }
            }
            (0..=1, None) => {
                file = Some(inode);
                Event::Create { inode: Some(inode) }
            }
            (0..=1, Some(_)) => Event::CreateExists,
            (2..=3, _) if planned.returned.is_none() => {
                if planned.happens {
                    file = None;
                }
                Event::Unlink
            }
            (2..=3, Some(_)) => {
                file = None;
                Event::Unlink
            }
            (2..=3, None) => Event::UnlinkMissing,
            (_, Some(inode)) => Event::Look { inode },
            (_, None) => Event::LookMissing,
        };
        history.push(finish(&planned, event));
    }
    history
}

fn log_history(callers: &[Vec<Step>]) -> Vec<Record> {
    let mut records = Vec::new();
    let mut history = Vec::new();
    for (record, planned) in (1..).zip(plan(callers)) {
        let event = if planned.what < 5 {
            if planned.happens {
                records.push(record);
            }
            Event::Append { record }
        } else {
            Event::ReadLog { records: records.clone() }
        };
        history.push(finish(&planned, event));
    }
    history
}

/// Returns every way to make one read of a block stale for certain: another write began after the
/// write of that value had returned, and had itself returned before the read began.
fn stale_reads(history: &[Record]) -> Vec<(usize, u64)> {
    let writes: BTreeMap<u64, (u64, u64)> = history
        .iter()
        .filter_map(|record| match record.event {
            Event::Write { value } => Some((value, (record.called_ns, record.returned_ns?))),
            _ => None,
        })
        .collect();
    let mut found = Vec::new();
    for (index, record) in history.iter().enumerate() {
        if !matches!(record.event, Event::Read { .. }) || record.returned_ns.is_none() {
            continue;
        }
        let before: Vec<_> = writes.iter().filter(|(_, (_, end))| *end < record.called_ns).collect();
        let stale = before.iter().find(|(_, (_, end))| before.iter().any(|(_, (called, _))| called > end));
        found.extend(stale.map(|(value, _)| (index, **value)));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn blocks(callers in callers()) {
        let report = report(&block_history(&callers));
        prop_assert!(report.is_linearizable(), "{}", report);
    }

    #[test]
    fn blocks_with_a_stale_read(callers in callers(), which in any::<prop::sample::Index>()) {
        let mut history = block_history(&callers);
        let stale = stale_reads(&history);
        prop_assume!(!stale.is_empty());
        let (index, value) = stale[which.index(stale.len())];
        history[index].event = Event::Read { value };
        let report = report(&history);
        prop_assert_eq!(report.violations.len(), 1, "{}", report);
        // The window is small, whatever the length of the history.
        prop_assert!(report.violations[0].lines().count() <= 10, "{}", report);
    }

    #[test]
    fn names(callers in callers()) {
        let report = report(&name_history(&callers));
        prop_assert!(report.is_linearizable(), "{}", report);
    }

    #[test]
    fn names_with_a_second_winner(callers in callers(), which in any::<prop::sample::Index>()) {
        let mut history = name_history(&callers);
        // No caller removes the name: a second successful create is one too many.
        history.retain(|record| !matches!(record.event, Event::Unlink | Event::UnlinkMissing));
        let mut made = false;
        history.retain(|record| match record.event {
            Event::Create { .. } => !std::mem::replace(&mut made, true),
            Event::CreateExists => made,
            _ => false,
        });
        let losers: Vec<usize> =
            (0..history.len()).filter(|&index| history[index].event == Event::CreateExists).collect();
        prop_assume!(!losers.is_empty() && history[0].returned_ns.is_some());
        prop_assert!(report(&history).is_linearizable());
        history[losers[which.index(losers.len())]].event = Event::Create { inode: Some(u64::MAX) };
        prop_assert_eq!(report(&history).violations.len(), 1);
    }

    #[test]
    fn logs(callers in callers()) {
        let report = report(&log_history(&callers));
        prop_assert!(report.is_linearizable(), "{}", report);
    }

    #[test]
    fn logs_that_lost_a_record(callers in callers(), which in any::<prop::sample::Index>()) {
        let mut history = log_history(&callers);
        let end = history.iter().filter_map(|record| record.returned_ns).max().unwrap_or(0);
        let lost: Vec<u64> = history.iter().filter(|record| record.returned_ns.is_some()).filter_map(|record| {
            match record.event {
                Event::Append { record } => Some(record),
                _ => None,
            }
        }).collect();
        prop_assume!(!lost.is_empty());
        let lost = lost[which.index(lost.len())];
        history.retain(|record| !matches!(record.event, Event::ReadLog { .. }));
        let mut left: Vec<u64> = history.iter().filter_map(|record| match record.event {
            Event::Append { record: id } if record.returned_ns.is_some() => Some(id),
            _ => None,
        }).collect();
        let reader = |records: Vec<u64>| Record {
            client: 9, thread: 0, object: "it".to_string(), called_ns: end + 1, returned_ns: Some(end + 2),
            event: Event::ReadLog { records },
        };
        history.push(reader(left.clone()));
        prop_assert!(report(&history).is_linearizable());
        left.retain(|&id| id != lost);
        history.pop();
        history.push(reader(left));
        prop_assert_eq!(report(&history).violations.len(), 1);
    }
}
