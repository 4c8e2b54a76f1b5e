//! Determines which limit binds, and how much of it was reached.
//!
//! A workload moves each byte (or makes each operation) through several resources, and through some
//! of them more than once: a write with two replicas goes to two drives. Let `c_r` be the ceilings
//! of one resource `r`, summed over those of its kind that work in parallel, and `f_r` how often an
//! application's byte passes it. Then the application gets at most
//!
//! `rate_max = min over r of (sum of c_r) / f_r`
//!
//! (the roofline model of Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009,
//! with bytes per byte in place of operations per byte). The `r` of the minimum binds. `f_r` is:
//! for writes to drives, the replicas of the scheme; for reads from drives, 1; for the network, the
//! replicas that the client or a primary sends; for memory copies and checksums, 1 on each end.

use crate::experiment::{Access, Operation};
use crate::results::{Ceiling, Measured, Run};
use ceilings::Limit;
use serde::{Deserialize, Serialize};

/// Records up to this size count as operations of drives, not as bytes.
const SMALL_RECORD_BYTES: u64 = 16 << 10;

/// Size of the operations with which random ceilings of drives are measured, in bytes.
const RANDOM_BYTES: u64 = 4096;

/// Parameters of a measurement that determine which resources its bytes pass.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// The operation.
    pub operation: Operation,
    /// Order of accesses; [`Access::Random`] for metadata operations.
    pub access: Access,
    /// Bytes per transfer.
    pub record_bytes: u64,
    /// Replicas of each byte: 1 without mirrors.
    pub copies: u32,
    /// Targets over which the files are striped; at most this many of the measured ones count, at
    /// the rate of the slowest.
    pub targets: u32,
    /// Links that carry the bytes in parallel (the smaller of clients' and servers'); 0: there is
    /// no network in between.
    pub links: u32,
}

/// The limit that binds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Binding {
    /// The limit.
    pub limit: Limit,
    /// Its location: the place of the ceiling, or how many of them there are.
    pub place: String,
    /// Highest rate for the application, in bytes per second; in operations per second for metadata
    /// operations.
    pub ceiling: f64,
    /// Share of it that was reached; 1 is all.
    pub share: f64,
}

/// Above this share a ceiling can't be right; below it is the variance of measurements.
const EXCEEDED: f64 = 1.05;

/// Returns a note for the reader if more was reached than a ceiling allows, about the worst such
/// case.
pub fn exceeded<'a>(bindings: impl Iterator<Item = &'a Binding>) -> Option<String> {
    let worst = bindings.max_by(|a, b| a.share.total_cmp(&b.share)).filter(|worst| worst.share > EXCEEDED)?;
    let (percent, limit, place) =
        (worst.share * 100.0, crate::figure_parts::serde_name(worst.limit), &worst.place);
    Some(format!(
        "{percent:.0} % of {limit} ({place}): a cache of the drive or a host has answered, or the ceiling was measured during other work; measure it again while nothing else runs"
    ))
}

/// Returns the ceiling that binds a workload that has reached `rate`: in bytes per second, or in
/// operations per second for metadata operations. `None` when no ceiling that it passes has been
/// measured.
pub fn binding(ceilings: &[Ceiling], workload: &Workload, rate: f64) -> Option<Binding> {
    let bounds = uses(workload).into_iter().filter_map(|u| bound(ceilings, &u));
    let (limit, place, ceiling) = bounds.min_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(Binding { limit, place, ceiling, share: rate / ceiling })
}

/// Like [`binding`], for the median of a measurement, with files of `copies` replicas that are
/// striped over all targets with a ceiling. Also `None` without runs.
///
/// The `cores` of the load-generating machine count as a resource too, by their utilisation; 0
/// excludes them. If they use a share `u` of their time for a rate `x`, they allow `x / u` (the
/// utilisation law, Lazowska and others, Quantitative System Performance, 1984, chapter 3).
pub fn binding_of(
    ceilings: &[Ceiling],
    cores: u32,
    measured: &Measured,
    access: Access,
    copies: u32,
) -> Option<Binding> {
    let count = |limit| ceilings.iter().filter(|ceiling| ceiling.limit == limit).count() as u32;
    let is_of_bytes = matches!(measured.operation, Operation::Write | Operation::Read | Operation::Mixed);
    let rate = if is_of_bytes { measured.bytes_per_s() } else { measured.ops_per_s() };
    let workload = Workload {
        operation: measured.operation,
        access,
        record_bytes: measured.record_bytes,
        copies,
        targets: count(Limit::StorageRead).max(count(Limit::StorageWrite)),
        links: count(Limit::Network).min(1),
    };
    let rate = rate?.0;
    let known = binding(ceilings, &workload, rate);
    let processors = busy(measured, cores).map(|share| Binding {
        limit: Limit::Processors,
        place: format!("{cores} cores of the client's machine"),
        ceiling: rate / share,
        share,
    });
    known.into_iter().chain(processors).max_by(|a, b| a.share.total_cmp(&b.share))
}

/// Returns the median processor utilisation of the runs; 1 is all.
fn busy(measured: &Measured, cores: u32) -> Option<f64> {
    if cores == 0 {
        return None;
    }
    let share = |run: &Run| Some((run.cpu_s? / run.seconds / f64::from(cores)).min(1.0));
    let mut shares: Vec<f64> = measured.runs.iter().filter_map(share).filter(|share| *share > 0.0).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied()
}

/// A resource that a workload passes.
struct ResourceUse {
    limit: Limit,
    /// How many work in parallel; `None`: only the best one, which already uses all cores.
    parallel: Option<u32>,
    /// Units of the limit per unit of the application's rate.
    factor: f64,
}

fn uses(w: &Workload) -> Vec<ResourceUse> {
    let (copies, targets) = (f64::from(w.copies.max(1)), Some(w.targets.max(1)));
    let is_small = w.access == Access::Random && w.record_bytes <= SMALL_RECORD_BYTES;
    // A record takes one drive operation per block of the ceiling's size, and at least one.
    let per_byte = (w.record_bytes as f64 / RANDOM_BYTES as f64).max(1.0) / w.record_bytes.max(1) as f64;
    let drive = |bulk, random, share: f64| match is_small {
        true => ResourceUse { limit: random, parallel: targets, factor: per_byte * share },
        false => ResourceUse { limit: bulk, parallel: targets, factor: share },
    };
    let writes = |share| drive(Limit::StorageWrite, Limit::StorageRandomWrite, share * copies);
    let reads = |share| drive(Limit::StorageRead, Limit::StorageRandomRead, share);
    let whole = |limit| ResourceUse { limit, parallel: None, factor: 1.0 };
    let network = |factor| {
        (w.links > 0).then_some(ResourceUse { limit: Limit::Network, parallel: Some(w.links), factor })
    };
    let mut uses = match w.operation {
        Operation::Write => vec![writes(1.0)],
        Operation::Read => vec![reads(1.0)],
        Operation::Mixed => vec![writes(0.3), reads(0.7)],
        // Metadata operations: one call of the mount each. The capacity of the metadata service
        // isn't a ceiling of the hardware.
        Operation::Create | Operation::Stat | Operation::ReadFile | Operation::Remove => {
            return vec![whole(Limit::FuseCalls)];
        }
    };
    let sent = match w.operation {
        Operation::Write => copies,
        Operation::Mixed => 0.3 * copies + 0.7,
        _ => 1.0,
    };
    uses.extend(network(sent));
    uses.extend([whole(Limit::MemoryCopy), whole(Limit::Checksum)]);
    uses
}

/// Returns the application's highest rate with one resource: that of the slowest measured one,
/// since striped files are limited by it, times their number.
fn bound(ceilings: &[Ceiling], used: &ResourceUse) -> Option<(Limit, String, f64)> {
    let of_kind = ceilings.iter().filter(|c| c.limit == used.limit && c.rate > 0.0);
    match used.parallel {
        None => {
            let best = of_kind.max_by(|a, b| a.rate.total_cmp(&b.rate))?;
            Some((used.limit, best.place.clone(), best.rate / used.factor))
        }
        Some(count) => {
            let slowest = of_kind.min_by(|a, b| a.rate.total_cmp(&b.rate))?;
            let place = match count {
                1 => slowest.place.clone(),
                _ => format!("{count} like {}", slowest.place),
            };
            Some((used.limit, place, slowest.rate * f64::from(count) / used.factor))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling(limit: Limit, place: &str, rate: f64) -> Ceiling {
        Ceiling { limit, place: place.into(), rate, streams: 1, measured: "2026-01-01T00:00:00Z".into() }
    }

    fn workload(operation: Operation) -> Workload {
        Workload {
            operation,
            access: Access::Sequential,
            record_bytes: 1 << 20,
            copies: 1,
            targets: 2,
            links: 0,
        }
    }

    fn ceilings() -> Vec<Ceiling> {
        vec![
            ceiling(Limit::StorageWrite, "target 1", 300.0),
            ceiling(Limit::StorageWrite, "target 2", 200.0),
            ceiling(Limit::StorageRead, "target 1", 500.0),
            ceiling(Limit::Network, "node 1 to node 2", 450.0),
            ceiling(Limit::MemoryCopy, "node 1", 10_000.0),
            ceiling(Limit::StorageRandomWrite, "target 1", 100.0),
            ceiling(Limit::StorageRandomRead, "target 1", 1000.0),
        ]
    }

    #[test]
    fn exceeded_ceilings_are_noted_with_the_likely_cause() {
        let reached = |rate| binding(&ceilings(), &workload(Operation::Write), rate).unwrap();
        let all = reached(1.0).ceiling;
        let (full, over) = (reached(all), reached(1.33 * all));
        assert!(exceeded([&full].into_iter()).is_none(), "{full:?}");
        let note = exceeded([&full, &over, &full].into_iter()).unwrap();
        assert!(note.starts_with("133 % of storage-write"), "{note}");
    }

    #[test]
    fn the_slowest_target_sets_the_pace_of_all() {
        let bound = binding(&ceilings(), &workload(Operation::Write), 100.0).unwrap();
        let expected = Binding {
            limit: Limit::StorageWrite,
            place: "2 like target 2".into(),
            ceiling: 400.0,
            share: 0.25,
        };
        assert_eq!(bound, expected);
    }

    #[test]
    fn copies_count_for_writes_only() {
        let mirrored = |operation| Workload { copies: 2, ..workload(operation) };
        let ceiling = |operation| binding(&ceilings(), &mirrored(operation), 1.0).unwrap().ceiling;
        assert_eq!(ceiling(Operation::Write), 200.0);
        assert_eq!(ceiling(Operation::Read), 1000.0);
    }

    #[test]
    fn a_narrow_link_binds_where_there_is_one() {
        let over = |operation, copies| Workload { links: 1, copies, ..workload(operation) };
        let bound = |w| binding(&ceilings(), &w, 90.0).unwrap();
        let read = bound(over(Operation::Read, 2));
        assert_eq!(
            (read.limit, read.place.as_str(), read.ceiling, read.share),
            (Limit::Network, "node 1 to node 2", 450.0, 0.2)
        );
        // Each replica is sent once, so both links and drives allow half.
        let write = bound(over(Operation::Write, 2));
        assert_eq!((write.limit, write.ceiling), (Limit::StorageWrite, 200.0));
    }

    #[test]
    fn small_random_records_are_operations_of_drives() {
        let random = |operation, record_bytes| Workload {
            access: Access::Random,
            record_bytes,
            targets: 1,
            ..workload(operation)
        };
        let bound = |w: Workload| binding(&ceilings(), &w, 1.0).unwrap();
        let read = bound(random(Operation::Read, 4096));
        // 1000 operations of 4096 bytes exceed memory copies in this table.
        assert_eq!((read.limit, read.ceiling), (Limit::MemoryCopy, 10_000.0));
        let mut table = ceilings();
        table.retain(|c| c.limit != Limit::MemoryCopy);
        let rate = |operation, bytes| binding(&table, &random(operation, bytes), 1.0).unwrap().ceiling;
        assert_eq!(rate(Operation::Read, 4096), 1000.0 * 4096.0);
        // Half a block takes as many operations as a whole one.
        assert_eq!(rate(Operation::Read, 2048), 1000.0 * 2048.0);
        assert_eq!(rate(Operation::Read, 16384), 1000.0 * 4096.0);
        assert_eq!(rate(Operation::Write, 4096), 100.0 * 4096.0);
        // Larger ones count by bytes.
        assert_eq!(rate(Operation::Read, 1 << 20), 500.0);
        // Three of ten operations are writes: 100 writes per second allow 333 operations in total.
        let mixed = binding(&table, &random(Operation::Mixed, 4096), 1.0).unwrap();
        assert_eq!(mixed.limit, Limit::StorageRandomWrite);
        assert!((mixed.ceiling - 100.0 * 4096.0 / 0.3).abs() < 1e-6);
    }

    #[test]
    fn busy_processors_bind_before_idle_drives() {
        let run = |cpu_s| Run {
            seconds: 2.0,
            operations: 100,
            bytes: 200,
            errors: 0,
            wrong_bytes: 0,
            latency: None,
            cpu_s,
        };
        let measured = |cpu_s: &[Option<f64>]| Measured {
            runs: cpu_s.iter().map(|cpu_s| run(*cpu_s)).collect(),
            experiment: "e".into(),
            operation: Operation::Write,
            clients: 1,
            threads: 1,
            record_bytes: 1 << 20,
            total_bytes: 200,
            queue_depth: 1,
            sharing: None,
            caching: crate::experiment::Caching::Cold,
            through: crate::experiment::Through::Mount,
            cached: None,
            generator_ns: None,
            binding: None,
        };
        let bound = |cores, cpu_s: &[Option<f64>]| {
            binding_of(&ceilings(), cores, &measured(cpu_s), Access::Sequential, 1).unwrap()
        };
        // 100 bytes per second are a quarter of the rate of two drives like the slower one; two
        // cores used 3 of 4 seconds.
        let all = bound(2, &[Some(3.0), Some(3.6), Some(1.0)]);
        assert_eq!((all.limit, all.share), (Limit::Processors, 0.75));
        assert!((all.ceiling - 100.0 / 0.75).abs() < 1e-9, "{all:?}");
        // Low utilisation, unknown utilisation, or time of other machines: the drives bind.
        for (cores, cpu_s) in [(2, Some(0.4)), (2, None), (0, Some(3.0))] {
            assert_eq!(bound(cores, &[cpu_s]).limit, Limit::StorageWrite);
        }
    }

    #[test]
    fn nothing_binds_that_was_not_measured() {
        assert_eq!(binding(&[], &workload(Operation::Read), 1.0), None);
        assert_eq!(binding(&ceilings(), &workload(Operation::Create), 1.0), None);
        let calls = [ceiling(Limit::FuseCalls, "node 1", 50_000.0)];
        assert_eq!(binding(&calls, &workload(Operation::Stat), 5_000.0).unwrap().share, 0.1);
    }
}
