//! Comparison of two results.

use crate::experiment::{Caching, Operation, Through};
use crate::figure_parts::serde_name;
use crate::results::{Measured, Results};
use serde::Serialize;

/// Parameters that must be equal for two measurements to be compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Key {
    /// Name of the experiment.
    pub experiment: String,
    /// The operation.
    pub operation: Operation,
    /// Threads of all clients.
    pub threads: u32,
    /// Bytes per transfer, or per file.
    pub record_bytes: u64,
    /// Transfers in flight per thread.
    pub queue_depth: u32,
    /// Access path; measurements with different paths are compared where there is none with the
    /// same path.
    pub through: Through,
}

/// A measurement in both results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Pair {
    /// Common parameters.
    #[serde(flatten)]
    pub key: Key,
    /// Whether the rates are bytes or operations a second.
    pub in_bytes: bool,
    /// Median, minimum and maximum of the first.
    pub first: (f64, f64, f64),
    /// Median, minimum and maximum of the second.
    pub second: (f64, f64, f64),
    /// The second median divided by the first.
    pub ratio: f64,
    /// Whether the ranges from minimum to maximum overlap: the ratio says little then.
    pub overlap: bool,
    /// Other differences: total size, caches, clients. Empty if none.
    pub differs: Vec<String>,
}

/// All pairs, and measurements without a partner.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Comparison {
    /// In the order of the first.
    pub pairs: Vec<Pair>,
    /// Only in the first.
    pub only_first: Vec<Key>,
    /// Only in the second.
    pub only_second: Vec<Key>,
}

/// Pairs measurements with the same experiment, operation, threads, record size and depth.
///
/// Several measurements with the same key are paired in their order. A measurement without runs has
/// no partner.
pub fn compare(first: &Results, second: &Results) -> Comparison {
    let mut comparison = Comparison::default();
    let mut rest: Vec<&Measured> =
        second.measured.iter().filter(|measured| rates(measured).is_some()).collect();
    for measured in &first.measured {
        let Some(ours) = rates(measured) else { continue };
        let key = Key::of(measured);
        match partner(&key, first, &rest) {
            Some(at) => {
                let other = rest.remove(at);
                comparison
                    .pairs
                    .extend(rates(other).map(|theirs| pair(key, (measured, ours), (other, theirs))));
            }
            None => comparison.only_first.push(key),
        }
    }
    comparison.only_second = rest.into_iter().map(Key::of).collect();
    comparison
}

/// Returns the index in `rest` of the measurement with the same key, or of one with another access
/// path that the first results lack.
fn partner(key: &Key, first: &Results, rest: &[&Measured]) -> Option<usize> {
    let at = |key: &Key| rest.iter().position(|other| Key::of(other) == *key);
    let has = |key: &Key| first.measured.iter().any(|other| Key::of(other) == *key);
    let through = if key.through == Through::Mount { Through::Core } else { Through::Mount };
    let other = Key { through, ..key.clone() };
    at(key).or_else(|| if has(&other) { None } else { at(&other) })
}

fn pair(key: Key, first: (&Measured, (f64, f64, f64)), second: (&Measured, (f64, f64, f64))) -> Pair {
    let ((a, first), (b, second)) = (first, second);
    Pair {
        in_bytes: is_in_bytes(a),
        ratio: second.0 / first.0,
        overlap: first.1 <= second.2 && second.1 <= first.2,
        differs: differences(a, b),
        key,
        first,
        second,
    }
}

fn differences(first: &Measured, second: &Measured) -> Vec<String> {
    let mut differs = Vec::new();
    if first.total_bytes != second.total_bytes {
        differs.push(format!("{} and {} bytes in all", first.total_bytes, second.total_bytes));
    }
    if first.caching != second.caching {
        differs.push(format!("caches {} and {}", caching(first.caching), caching(second.caching)));
    }
    if first.through != second.through {
        let [a, b] = [first, second].map(|of| serde_name(of.through));
        differs.push(format!("through the {a} and through the {b}"));
    }
    if first.clients != second.clients {
        differs.push(format!("{} and {} clients", first.clients, second.clients));
    }
    if first.cached.is_some() != second.cached.is_some() {
        let which = if first.cached.is_some() { "the first" } else { "the second" };
        differs.push(format!("only {which} was answered by caches"));
    }
    differs
}

/// Returns the word for it in results.
fn caching(caching: Caching) -> &'static str {
    match caching {
        Caching::Direct => "direct",
        Caching::Cold => "cold",
        Caching::Warm => "warm",
    }
}

/// Returns whether a measurement is reported in bytes: large transfers are; small transfers and
/// metadata operations are reported in operations.
pub fn is_in_bytes(measured: &Measured) -> bool {
    const SMALL_BYTES: u64 = 16 << 10;
    matches!(measured.operation, Operation::Write | Operation::Read | Operation::Mixed)
        && measured.record_bytes > SMALL_BYTES
}

/// Returns median, minimum and maximum in the unit that suits the measurement; `None` without runs
/// with a rate.
pub fn rates(measured: &Measured) -> Option<(f64, f64, f64)> {
    let rates = if is_in_bytes(measured) { measured.bytes_per_s() } else { measured.ops_per_s() };
    rates.filter(|(middle, ..)| *middle > 0.0 && middle.is_finite())
}

impl Key {
    /// Returns the key of a measurement.
    pub fn of(measured: &Measured) -> Key {
        Key {
            experiment: measured.experiment.clone(),
            operation: measured.operation,
            threads: measured.threads,
            record_bytes: measured.record_bytes,
            queue_depth: measured.queue_depth,
            through: measured.through,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import;

    fn results() -> Results {
        import::any(include_str!("../tests/fixtures/ior-4.0.0-nn.txt")).unwrap()
    }

    #[test]
    fn the_same_is_alike_and_half_is_half() {
        let first = results();
        let same = compare(&first, &first);
        assert_eq!(same.pairs.len(), 2);
        assert!(same.pairs.iter().all(|pair| pair.ratio == 1.0 && pair.overlap && pair.differs.is_empty()));
        let mut slower = first.clone();
        slower.measured.iter_mut().flat_map(|measured| &mut measured.runs).for_each(|run| run.seconds *= 2.0);
        let halves = compare(&first, &slower);
        assert!(halves.pairs.iter().all(|pair| (pair.ratio - 0.5).abs() < 1e-9 && !pair.overlap));
    }

    #[test]
    fn unmatched_measurements_are_listed() {
        let (first, mut second) = (results(), results());
        second.measured[0].threads = 64;
        second.measured[1].runs.clear();
        let comparison = compare(&first, &second);
        assert!(comparison.pairs.is_empty());
        assert_eq!(comparison.only_first.len(), 2);
        assert_eq!(comparison.only_second.iter().map(|key| key.threads).collect::<Vec<_>>(), [64]);
    }

    #[test]
    fn ways_are_paired_with_their_own_kind_first() {
        let by = |ways: &[Through]| {
            let mut all = results();
            let one = all.measured.remove(0);
            all.measured = ways.iter().map(|&through| Measured { through, ..one.clone() }).collect();
            all
        };
        let (mount, both) = (by(&[Through::Mount]), by(&[Through::Core, Through::Mount]));
        let alike = compare(&both, &mount);
        assert_eq!(
            (alike.pairs[0].key.through, alike.only_first[0].through),
            (Through::Mount, Through::Core)
        );
        assert!(alike.pairs[0].differs.is_empty());
        let ways = compare(&by(&[Through::Core]), &mount);
        assert_eq!(ways.pairs[0].differs, ["through the core and through the mount"]);
    }

    #[test]
    fn other_differences_are_listed() {
        let (first, mut second) = (results(), results());
        second.measured[0].total_bytes *= 2;
        second.measured[0].caching = Caching::Direct;
        second.measured[0].cached = Some("small".into());
        let differs = &compare(&first, &second).pairs[0].differs;
        assert_eq!(differs.len(), 3, "{differs:?}");
    }
}
