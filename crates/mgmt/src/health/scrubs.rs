//! Findings of scrubs.

use super::finding;
use wire::mgmt::{HealthCode, HealthFinding, ScrubProgress, Verdict};

/// A finding for each target with scrub errors.
pub(super) fn scrub_findings(scrubs: &[ScrubProgress]) -> Vec<HealthFinding> {
    scrubs.iter().filter_map(scrub_finding).collect()
}

fn scrub_finding(progress: &ScrubProgress) -> Option<HealthFinding> {
    let ScrubProgress { target, damaged, mended, missing, .. } = progress;
    if *damaged == 0 && *missing == 0 {
        return None;
    }
    // A missing chunk file of a mirrored group is among the repaired damage.
    let unrepaired = damaged.saturating_sub(*mended) + missing.saturating_sub(*mended);
    let lost = if *missing > 0 { format!(", {missing} missing chunk files") } else { String::new() };
    Some(match unrepaired {
        0 => finding(
            HealthCode::DamageRepaired,
            Verdict::Warning,
            format!("target {target} had {damaged} damaged ranges{lost}; all were repaired from other replicas"),
            "check its disk (smartctl, kernel log); weft scrub start checks again".into(),
        ),
        _ => finding(
            HealthCode::DamageLeft,
            Verdict::Critical,
            format!("target {target} has damage that could not be repaired: {damaged} damaged ranges{lost}, {mended} repaired"),
            "weft fsck names the files: restore them from a backup; check the disk, and weft scrub start checks again".into(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::TargetId;

    #[test]
    fn damage_is_a_finding_until_a_scrub_finds_none() {
        let progress = |damaged, mended, missing| ScrubProgress {
            target: TargetId(4),
            damaged,
            mended,
            missing,
            ..ScrubProgress::default()
        };
        let verdict = |progress| scrub_findings(&[progress]).first().map(|found| found.verdict);
        assert_eq!(verdict(progress(0, 0, 0)), None);
        assert_eq!(verdict(progress(2, 2, 0)), Some(Verdict::Warning));
        assert_eq!(verdict(progress(1, 1, 1)), Some(Verdict::Warning));
        assert_eq!(verdict(progress(2, 1, 0)), Some(Verdict::Critical));
        assert_eq!(verdict(progress(0, 0, 1)), Some(Verdict::Critical));
    }
}
