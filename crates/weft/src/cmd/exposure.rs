//! `weft health --exposure`: what would be lost if a target, a node or a rack failed now.

use crate::cli::HealthArgs;
use crate::control::Request;
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::size::format_size;
use ::fsck::{Amount, Domain, DomainExposure, Exposure};
use std::time::Duration;
use types::{Errno, Error, NodeId, Result, TargetId};

/// Longest time for the answer: all metadata is read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Parses `target:N`, `node:N` or `rack:NAME`.
pub fn parse_domain(text: &str) -> std::result::Result<Domain, String> {
    let wrong = || format!("{text:?} is none of target:N, node:N and rack:NAME");
    let (kind, number) = text.split_once(':').ok_or_else(wrong)?;
    if kind == "rack" {
        let is_name = mgmt::check_rack(number).is_ok();
        return is_name.then(|| Domain::Rack(number.into())).ok_or_else(wrong);
    }
    let number: u32 = number.parse().map_err(|_| wrong())?;
    match kind {
        "target" => Ok(Domain::Target(TargetId(number))),
        "node" => Ok(Domain::Node(NodeId(number))),
        _ => Err(wrong()),
    }
}

/// Shows the exposure map.
pub fn run(args: &HealthArgs) -> Result<()> {
    let progress = Progress::start("reading the metadata");
    let mut exposure: Exposure = args.dir.find()?.ask_with_timeout(Request::Exposure, ANSWER_TIMEOUT)?;
    drop(progress);
    if let Some(of) = &args.of {
        exposure.exposed.retain(|exposed| exposed.domain == *of);
        if exposure.exposed.is_empty() {
            return Err(Error::new(Errno::ENOENT, format!("there is no {}", name(of)))
                .hint("weft target list and weft node list show all, with the racks of nodes"));
        }
    }
    match args.json {
        true => print_json(&exposure),
        false => {
            print(&screen(&exposure));
            Ok(())
        }
    }
}

fn name(domain: &Domain) -> String {
    match domain {
        Domain::Target(target) => format!("target {target}"),
        Domain::Node(node) => format!("node {node}"),
        Domain::Rack(rack) => format!("rack {rack}"),
    }
}

fn amount(Amount { files, bytes }: Amount) -> String {
    match bytes {
        0 => "nothing".into(),
        bytes => format!("{} of {files} files", format_size(bytes)),
    }
}

fn screen(exposure: &Exposure) -> String {
    let mut text = format!("{} on targets\n", amount(exposure.all));
    let mut now = |what: &str, now: Amount| {
        if now.bytes > 0 {
            text += &format!("now: {} {what}\n", amount(now));
        }
    };
    now("have no intact replica", exposure.lost_now);
    now("have one intact replica of several", exposure.at_risk_now);
    if exposure.estimated_files > 0 {
        text += &format!(
            "estimated: {} of the files have holes or are being written, and count with their whole length\n",
            exposure.estimated_files
        );
    }
    text + &exposure.exposed.iter().map(one).collect::<String>()
}

fn one(exposed: &DomainExposure) -> String {
    let node = match (&exposed.domain, &*exposed.node) {
        (_, "") | (Domain::Rack(_), _) => String::new(),
        (Domain::Node(_), name) => format!(" ({name})"),
        (Domain::Target(_), name) => format!(" (on {name})"),
    };
    let mut text = format!(
        "without {}{node}: lost: {}; left with one replica: {}\n",
        name(&exposed.domain),
        amount(exposed.lost),
        amount(exposed.at_risk)
    );
    if exposed.keeps_metadata {
        text += "  it stores the metadata: without a backup of it no file could be read (weft meta backup)\n";
    }
    for heavy in &exposed.top {
        let part = |what: &str, part: Amount| match part.bytes {
            0 => String::new(),
            _ => format!("  {what}: {}", amount(part)),
        };
        text +=
            &format!("  {}{}{}\n", heavy.path, part("lost", heavy.lost), part("one replica", heavy.at_risk));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::fsck::HeavyDirectory;

    #[test]
    fn domains_are_named_as_people_name_them() {
        assert_eq!(parse_domain("target:7"), Ok(Domain::Target(TargetId(7))));
        assert_eq!(parse_domain("node:2"), Ok(Domain::Node(NodeId(2))));
        assert_eq!(parse_domain("rack:r1"), Ok(Domain::Rack("r1".into())));
        for wrong in ["rack:", "rack:a b", "rack:none", "target", "node:x", ""] {
            assert!(parse_domain(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_exposed_is_said_with_its_places() {
        let (lost, at_risk) = (Amount { files: 2, bytes: 2048 }, Amount::default());
        let exposed = DomainExposure {
            domain: Domain::Target(TargetId(3)),
            node: "a".into(),
            keeps_metadata: false,
            lost,
            at_risk,
            top: vec![HeavyDirectory { path: "/scratch".into(), lost, at_risk }],
        };
        let exposure = Exposure { all: lost, exposed: vec![exposed], ..Exposure::default() };
        let expected = "2 KiB of 2 files on targets\n\
            without target 3 (on a): lost: 2 KiB of 2 files; left with one replica: nothing\n  \
            /scratch  lost: 2 KiB of 2 files\n";
        assert_eq!(screen(&exposure), expected);
    }
}
