//! The probability of data loss.
//!
//! A Markov chain counts lost targets: from state i it goes to i + 1 when another one fails, and
//! back when one is rebuilt. It ends with one loss more than the scheme tolerates, if members of
//! one group are among the lost targets. It is the model of Patterson, Gibson and Katz ("A Case for
//! Redundant Arrays of Inexpensive Disks (RAID)", SIGMOD 1988) for one redundant drive; for more of
//! them and with drives' unreadable bits as in Rao, Hafner and Golding ("Reliability for Networked
//! Storage Nodes", DSN 2006). The time to the end of a birth-death chain is textbook (Trivedi:
//! "Probability and Statistics with Reliability, Queuing, and Computer Science Applications",
//! chapter 8). It assumes independent failures at a constant rate: a bad batch, a fire or a
//! programming error is not included.

use super::rebuild::Rebuild;
use super::site::{ServerKind, Site};
use super::{Raid, invalid};
use serde::Serialize;
use types::Result;

const YEAR_S: f64 = 365.25 * 86_400.0;
const HOUR_S: f64 = 3600.0;
const BITS: f64 = 8.0;

/// The chain's parameters and results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LossModel {
    /// Targets that can fail.
    pub targets: f64,
    /// Concurrent losses that the scheme tolerates.
    pub tolerates: u16,
    /// Failures of a target a year.
    pub failures_per_year: f64,
    /// Rebuilds a year of a target that is always lost again: the inverse of the duration of one.
    pub rebuilds_per_year: f64,
    /// Probability that one failure more than tolerated hits targets that share a group.
    pub shares_group: f64,
    /// Probability of an unreadable bit when no redundancy is left.
    pub unreadable: f64,
    /// Mean time to data loss in years.
    pub mean_years_to_loss: f64,
    /// Probability of data loss within a year.
    pub loss_per_year: f64,
}

/// Solves the chain. Expected time from state i to i + 1: `t(0) = 1 / up(0)`,
/// `t(i) = 1 / up(i) + down / up(i) * t(i - 1)`. An unreadable bit ends it from the last state but
/// one, the next failure from the last state.
///
/// Errors: an invalid number.
pub fn solve_chain(
    targets: f64,
    tolerates: u16,
    failures_per_year: f64,
    rebuilds_per_year: f64,
    shares_group: f64,
    unreadable: f64,
) -> Result<LossModel> {
    let valid = targets >= f64::from(tolerates) + 1.0
        && failures_per_year >= 0.0
        && rebuilds_per_year > 0.0
        && (0.0..=1.0).contains(&shares_group)
        && (0.0..=1.0).contains(&unreadable);
    if !valid {
        return Err(invalid(
            "the failure model has an invalid number",
            "more targets than tolerated losses, rates from 0, probabilities from 0 to 1",
        ));
    }
    let up = |state: u16| (targets - f64::from(state)) * failures_per_year;
    let down = rebuilds_per_year;
    let ends = up(tolerates) * shares_group;
    let mean_years_to_loss = match tolerates {
        0 => 1.0 / ends,
        last => {
            let (mut before, mut step) = (0.0, 1.0 / up(0));
            for state in 1..last {
                before += step;
                step = 1.0 / up(state) + down / up(state) * step;
            }
            // a: from the last state but one; m: from the last. a = step + (1 - h) m, m = 1 / (ends
            // + down) + down / (ends + down) a.
            let survives = 1.0 - unreadable;
            before + (step * (ends + down) + survives) / (ends + down * unreadable)
        }
    };
    // 1 / 0 is infinite, and so is the result for drives that never fail.
    let mean_years_to_loss = if mean_years_to_loss.is_nan() { f64::INFINITY } else { mean_years_to_loss };
    let loss_per_year = -(-1.0 / mean_years_to_loss).exp_m1();
    Ok(LossModel {
        targets,
        tolerates,
        failures_per_year,
        rebuilds_per_year,
        shares_group,
        unreadable,
        mean_years_to_loss,
        loss_per_year,
    })
}

/// The chain of a site. Groups cover all combinations of failure domains, so any targets in
/// different domains share one: this is the worst case of declustering (Cidon and others:
/// "Copysets", USENIX ATC 2013).
pub(super) fn of_site(site: &Site, rebuild: Option<&Rebuild>) -> Result<LossModel> {
    let targets = site.targets();
    let failures = site.sum(|kind| kind.targets() * target_failures(site, kind)) / targets;
    let rebuilds = rebuild.map_or(1.0, |rebuild| YEAR_S / rebuild.seconds.max(1.0));
    let tolerates = site.pool.scheme.tolerates();
    solve_chain(targets, tolerates, failures, rebuilds, shares_group(site), unreadable(site, rebuild))
}

/// Failures of a target a year: those of its drives, or of both drives of a pair before one is
/// replaced.
fn target_failures(site: &Site, kind: &ServerKind) -> f64 {
    let drive = -(-kind.drive.afr).ln_1p();
    let drives = f64::from(kind.server.drives_per_target);
    match kind.server.raid {
        Raid::Striped => drives * drive,
        Raid::Mirrored => {
            let copy_s = kind.drive.tb * 1e12 / (kind.drive.write_gb_s * 1e9);
            let repair_years = (site.model.replaced_after_hours * HOUR_S + copy_s) / YEAR_S;
            drives * drive * drive * repair_years
        }
    }
}

/// Probability that all concurrently lost targets are in different failure domains.
fn shares_group(site: &Site) -> f64 {
    let targets = site.targets();
    let in_domain = targets / f64::from(site.domains());
    let others = 1..=site.pool.scheme.tolerates();
    others.map(f64::from).map(|lost| ((targets - lost * in_domain) / (targets - lost)).max(0.0)).product()
}

/// Probability of an unreadable bit in content that has lost all redundancy: all of a target's
/// content if the scheme tolerates one loss; with more, the groups that all lost targets share.
fn unreadable(site: &Site, rebuild: Option<&Rebuild>) -> f64 {
    let Some(rebuild) = rebuild else { return 0.0 };
    let scheme = site.pool.scheme;
    let (members, targets) = (f64::from(scheme.members()), site.targets());
    let critical: f64 =
        (1..scheme.tolerates()).map(f64::from).map(|lost| (members - lost) / (targets - lost)).product();
    let worst = site.kinds.iter().map(|kind| kind.drive.unreadable_per_bit).fold(0.0, f64::max);
    let bits = rebuild.bytes * scheme.read_per_lost_byte() * critical * BITS;
    -(-bits * worst).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn one_redundant_replica_matches_the_textbook_formula() {
        // Patterson, Gibson, Katz: MTTF^2 / (N (N - 1) MTTR), exact except for terms of the order
        // of the smaller time.
        let (targets, failures, rebuilds) = (100.0, 0.01, 8766.0 / 24.0);
        let chain = solve_chain(targets, 1, failures, rebuilds, 1.0, 0.0).unwrap();
        let textbook = rebuilds / (targets * (targets - 1.0) * failures * failures);
        assert!(
            (chain.mean_years_to_loss / textbook - 1.0).abs() < 0.01,
            "{} {textbook}",
            chain.mean_years_to_loss
        );
    }

    #[test]
    fn without_redundancy_the_first_failure_loses_data() {
        let chain = solve_chain(50.0, 0, 0.02, 1.0, 1.0, 0.0).unwrap();
        assert!((chain.mean_years_to_loss - 1.0).abs() < 1e-12);
        assert!((chain.loss_per_year - (1.0 - (-1.0f64).exp())).abs() < 1e-12);
    }

    #[test]
    fn drives_that_never_fail_lose_nothing() {
        for tolerates in 0..3 {
            let chain = solve_chain(50.0, tolerates, 0.0, 100.0, 1.0, 0.5).unwrap();
            assert_eq!(chain.loss_per_year, 0.0, "{tolerates}");
        }
    }

    #[test]
    fn the_chain_is_what_a_simulation_of_it_finds() {
        for (tolerates, shares, unreadable) in
            [(1u16, 1.0, 0.0), (2, 0.7, 0.0), (2, 1.0, 0.05), (3, 0.5, 0.02)]
        {
            let (targets, failures, rebuilds) = (12.0, 0.5, 20.0);
            let expected = solve_chain(targets, tolerates, failures, rebuilds, shares, unreadable).unwrap();
            let mut random = SplitMix64::new(u64::from(tolerates) + 1);
            let mut uniform = || (random.next() >> 11) as f64 / (1u64 << 53) as f64;
            let runs = 4000;
            let mean =
                (0..runs).map(|_| simulate_lifetime(&expected, &mut uniform)).sum::<f64>() / f64::from(runs);
            // The lifetime is nearly exponential: its mean over n runs scatters by 1 / sqrt(n), 1.6
            // %.
            let off = mean / expected.mean_years_to_loss - 1.0;
            assert!(off.abs() < 0.06, "{tolerates} {shares} {unreadable}: off by {off}");
        }
    }

    /// One lifetime of a system, event by event.
    fn simulate_lifetime(chain: &LossModel, uniform: &mut impl FnMut() -> f64) -> f64 {
        let (mut years, mut lost) = (0.0, 0u16);
        loop {
            let fails = (chain.targets - f64::from(lost)) * chain.failures_per_year;
            let comes_back = if lost > 0 { chain.rebuilds_per_year } else { 0.0 };
            years -= (1.0 - uniform()).ln() / (fails + comes_back);
            if uniform() * (fails + comes_back) < comes_back {
                lost -= 1;
            } else if lost == chain.tolerates {
                if uniform() < chain.shares_group {
                    return years;
                }
            } else {
                lost += 1;
                if lost == chain.tolerates && uniform() < chain.unreadable {
                    return years;
                }
            }
        }
    }
}
