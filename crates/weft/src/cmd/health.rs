//! `weft health`: the cluster's health, and recommended actions.

use super::manage::{ask, unexpected_reply};
use super::watch::{self, View};
use crate::cli::HealthArgs;
use crate::exit::{ArgumentCheck, Exit, Outcome};
use crate::output::format_age;
use std::collections::BTreeMap;
use types::Result;
use wire::mgmt::{BackupsInfo, CeilingShare, Health, MeasuredPlace, TargetRate, Verdict};
use wire::{MgmtReply, MgmtRequest};

/// Number of targets whose utilization is shown.
const BUSIEST_SHOWN: usize = 4;

/// Runs the command. The exit status shows the verdict.
pub fn run(args: &HealthArgs) -> Outcome {
    let shown = watch::show(args.json, args.watch, || {
        let health = ask_health(args)?;
        Ok(View::new(&health, health_screen(&health))?.exit(exit_of(health.verdict)))
    });
    shown.or_exit(Exit::HealthUnknown)
}

fn ask_health(args: &HealthArgs) -> Result<Health> {
    match ask(&args.dir, MgmtRequest::Health)? {
        MgmtReply::Health(health) => Ok(health),
        other => Err(unexpected_reply(&other)),
    }
}

fn exit_of(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Healthy => Exit::Success,
        Verdict::Warning => Exit::HealthWarning,
        Verdict::Critical => Exit::HealthCritical,
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Healthy => "healthy",
        Verdict::Warning => "warning",
        Verdict::Critical => "critical",
    }
}

fn health_screen(health: &Health) -> String {
    let line = |f: &wire::mgmt::HealthFinding| {
        let code = if f.code.is_empty() { String::new() } else { format!(" [{}]", f.code) };
        format!("{}: {}{code}\n  hint: {}\n", verdict_name(f.verdict), f.what, f.hint)
    };
    let findings: String = health.findings.iter().map(line).collect();
    let copies = health.copies.as_ref().map(copies_line).unwrap_or_default();
    let ceilings = ceilings_lines(&health.ceilings);
    let shares = share_lines(&health.rates);
    format!("{}\n{findings}{copies}{ceilings}{shares}", verdict_name(health.verdict))
}

/// Shows the busiest drives, named by their targets, with the utilization of the limiting ceiling;
/// `--json` has all.
fn share_lines(rates: &[TargetRate]) -> String {
    let line = |what: &str, share: fn(&TargetRate) -> Option<&CeilingShare>| {
        let is_first = |rate: &&TargetRate| rate.one_drive_with.iter().all(|other| *other > rate.target);
        let mut busy: Vec<(&TargetRate, &CeilingShare)> =
            rates.iter().filter(is_first).filter_map(|rate| Some((rate, share(rate)?))).collect();
        busy.sort_by(|a, b| b.1.share.total_cmp(&a.1.share));
        let shares = busy
            .iter()
            .take(BUSIEST_SHOWN)
            .map(|(rate, of)| format!("{} {:.0} % ({})", drive_label(rate), 100.0 * of.share, of.limit));
        let shares: Vec<String> = shares.collect();
        match (busy.len(), busy.last()) {
            (0, _) | (_, None) => String::new(),
            (all, Some((_, least))) if all > BUSIEST_SHOWN => {
                let others = format!("; {} others down to {:.0} %", all - BUSIEST_SHOWN, 100.0 * least.share);
                format!("{what}: {}{others}\n", shares.join(", "))
            }
            _ => format!("{what}: {}\n", shares.join(", ")),
        }
    };
    line("utilization of the limiting resource, last 10 s", |rate| rate.now.as_ref())
        + &line("peak in any 10 s since the start", |rate| rate.most.as_ref())
}

/// Names a drive by its targets.
fn drive_label(rate: &TargetRate) -> String {
    let others: String = rate.one_drive_with.iter().map(|other| format!("+{other}")).collect();
    format!("target {}{others}", rate.target)
}

/// Shows when targets and nodes were measured, grouped by day.
fn ceilings_lines(places: &[MeasuredPlace]) -> String {
    let mut days: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
    for place in places {
        let day = place.measured.as_deref().map(|time| time.split('T').next().unwrap_or(time));
        days.entry(day).or_default().push(&place.place);
    }
    if days.keys().all(Option::is_none) {
        let is_empty = places.is_empty();
        return if is_empty {
            String::new()
        } else {
            "ceilings are not measured yet: weft bench storage\n".into()
        };
    }
    let line = |(day, places): (Option<&str>, Vec<&str>)| match day {
        Some(day) => format!("ceilings were measured on {day}: {}\n", places.join(", ")),
        None => format!("ceilings are not measured yet: {}\n", places.join(", ")),
    };
    days.into_iter().map(line).collect()
}

fn copies_line(copies: &BackupsInfo) -> String {
    match (&copies.newest, copies.age_s) {
        (Some(newest), Some(age_s)) => {
            format!("the newest metadata backup is {} old: {newest}\n", format_age(age_s as i64))
        }
        _ if copies.kept == 0 => "daily metadata backups are off (backups = 0)\n".into(),
        _ => format!("there is no metadata backup in {} yet\n", copies.folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_grouped_by_day() {
        let place = |place: &str, measured: Option<&str>| MeasuredPlace {
            place: place.into(),
            measured: measured.map(Into::into),
        };
        let never = place("target 2", None);
        assert_eq!(ceilings_lines(&[]), "");
        assert_eq!(
            ceilings_lines(std::slice::from_ref(&never)),
            "ceilings are not measured yet: weft bench storage\n"
        );
        let two = [place("target 1", Some("2026-11-23T01:00:00Z")), never];
        assert_eq!(
            ceilings_lines(&two),
            "ceilings are not measured yet: target 2\nceilings were measured on 2026-11-23: target 1\n"
        );
    }

    #[test]
    fn the_busiest_targets_come_first() {
        let rate = |target: u32, share: Option<f64>| TargetRate {
            target: types::TargetId(target),
            read_bytes: 0.0,
            written_bytes: 1e6,
            reads: 0.0,
            writes: 1.0,
            one_drive_with: Vec::new(),
            now: share.map(|share| CeilingShare { limit: "storage-write".into(), share }),
            most: None,
        };
        assert_eq!(share_lines(&[]), "");
        assert_eq!(share_lines(&[rate(1, None)]), "");
        assert_eq!(
            share_lines(&[rate(1, Some(0.124)), rate(2, None), rate(3, Some(1.0))]),
            "utilization of the limiting resource, last 10 s: target 3 100 % (storage-write), target 1 12 % (storage-write)\n"
        );
        let of_pair = |target, other| TargetRate {
            one_drive_with: vec![types::TargetId(other)],
            ..rate(target, Some(0.5))
        };
        assert_eq!(
            share_lines(&[of_pair(1, 4), of_pair(4, 1)]),
            "utilization of the limiting resource, last 10 s: target 1+4 50 % (storage-write)\n"
        );
        let many: Vec<TargetRate> = (1..=9).map(|n| rate(n, Some(f64::from(n) / 10.0))).collect();
        let shares = share_lines(&many);
        assert!(
            shares.contains(": target 9 90 %") && shares.ends_with("; 5 others down to 10 %\n"),
            "{shares}"
        );
    }

    #[test]
    fn the_exit_status_shows_the_verdict() {
        let codes = [Verdict::Healthy, Verdict::Warning, Verdict::Critical].map(|v| exit_of(v).code());
        assert_eq!(codes, [0, 1, 2]);
    }

    #[test]
    fn a_verdict_comes_with_its_hints() {
        let finding = wire::mgmt::HealthFinding {
            code: "node-offline".into(),
            verdict: Verdict::Critical,
            what: "node 2 (a) is offline".into(),
            hint: "start it".into(),
        };
        let health = Health {
            verdict: Verdict::Critical,
            findings: vec![finding],
            copies: None,
            store: None,
            ceilings: vec![],
            rates: vec![],
        };
        let text = "critical\ncritical: node 2 (a) is offline [node-offline]\n  hint: start it\n";
        assert_eq!(health_screen(&health), text);
        let mut health = Health {
            verdict: Verdict::Healthy,
            findings: vec![],
            copies: None,
            store: None,
            ceilings: vec![],
            rates: vec![],
        };
        assert_eq!(health_screen(&health), "healthy\n");
        let copies = BackupsInfo { folder: "/b".into(), kept: 7, newest: None, age_s: None, failure: None };
        health.copies = Some(copies.clone());
        assert_eq!(health_screen(&health), "healthy\nthere is no metadata backup in /b yet\n");
        health.copies = Some(BackupsInfo { newest: Some("/b/c".into()), age_s: Some(7300), ..copies });
        assert_eq!(health_screen(&health), "healthy\nthe newest metadata backup is 2 hours old: /b/c\n");
    }
}
