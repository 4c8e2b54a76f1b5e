//! Search for the smallest configuration that meets given goals.

use super::{Description, Plan, invalid, plan};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use types::{Error, Result};

/// Most servers that the search tries.
pub const MAX_SERVERS: u32 = 10_000;

/// A requirement of a plan.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Requirement {
    /// Sequential read of at least this many bytes a second.
    Read(f64),
    /// Sequential write.
    Write(f64),
    /// Random reads of 4 KiB a second.
    ReadIops(f64),
    /// Random writes of 4 KiB a second.
    WriteIops(f64),
    /// Usable bytes.
    Usable(f64),
    /// Highest probability of data loss a year.
    Loss(f64),
}

impl Requirement {
    /// Whether a plan meets it.
    pub fn is_met(self, plan: &Plan) -> bool {
        match self {
            Requirement::Read(wanted) => plan.read.per_s >= wanted,
            Requirement::Write(wanted) => plan.write.per_s >= wanted,
            Requirement::ReadIops(wanted) => plan.random_read.per_s >= wanted,
            Requirement::WriteIops(wanted) => plan.random_write.per_s >= wanted,
            Requirement::Usable(wanted) => plan.capacity.usable_bytes >= wanted,
            Requirement::Loss(wanted) => plan.reliability.loss_per_year <= wanted,
        }
    }

    /// Why a plan doesn't meet it, and a remedy.
    fn unmet_reason(self, plan: &Plan) -> (String, &'static str) {
        let rate = |rate: &super::PlannedRate, unit: f64, name: &str| {
            format!("{:.4} {name}, limited by the {}", rate.per_s / unit, rate.binds)
        };
        let faster = "describe more or faster hardware of the limiting kind (clients don't grow with servers), or omit the clients";
        match self {
            Requirement::Read(_) => (rate(&plan.read, GB, "GB/s"), faster),
            Requirement::Write(_) => (rate(&plan.write, GB, "GB/s"), faster),
            Requirement::ReadIops(_) => (rate(&plan.random_read, 1e6, "M IOPS"), faster),
            Requirement::WriteIops(_) => (rate(&plan.random_write, 1e6, "M IOPS"), faster),
            Requirement::Usable(_) => (
                format!("{:.4} TB usable", plan.capacity.usable_bytes / TB),
                "describe larger drives or more of them",
            ),
            Requirement::Loss(_) => (
                format!("a probability of loss of {:.2e} a year", plan.reliability.loss_per_year),
                "use a scheme that tolerates more losses, or reserve spare capacity so that rebuilds start at once",
            ),
        }
    }
}

const GB: f64 = 1e9;
const TB: f64 = 1e12;

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requirement::Read(rate) => write!(f, "{} GB/s read", rate / GB),
            Requirement::Write(rate) => write!(f, "{} GB/s write", rate / GB),
            Requirement::ReadIops(rate) => write!(f, "{} IOPS read", rate),
            Requirement::WriteIops(rate) => write!(f, "{} IOPS write", rate),
            Requirement::Usable(bytes) => write!(f, "{} TB usable", bytes / TB),
            Requirement::Loss(part) => write!(f, "{part:e} loss"),
        }
    }
}

impl Serialize for Requirement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Requirement {
    type Err = Error;

    /// `100 GB/s read`, `3.5M IOPS write`, `500 TiB usable`, `1e-6 loss`.
    fn from_str(text: &str) -> Result<Requirement> {
        let wrong = || {
            invalid(
                format!("{text:?} is not a valid goal"),
                "write for example '100 GB/s read', '50 GB/s write', '3M IOPS read', '1M IOPS write', '500 TiB usable' or '1e-6 loss'",
            )
        };
        let compact: String = text.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
        // Digits, a point, and an exponent that is complete ("1e-6", not the e of a unit).
        let number = (1..=compact.len())
            .rev()
            .filter(|end| compact.is_char_boundary(*end))
            .find_map(|end| Some((compact[..end].trim_end().parse::<f64>().ok()?, compact[end..].trim())));
        let (number, unit) =
            number.filter(|(number, _)| *number > 0.0 && number.is_finite()).ok_or_else(wrong)?;
        let (unit, what) = unit.rsplit_once(' ').unwrap_or(("", unit));
        let goal = match what {
            "read" | "write" if unit.ends_with("iops") => {
                let iops = number * scale(unit.trim_end_matches("iops").trim(), "").ok_or_else(wrong)?;
                if what == "read" { Requirement::ReadIops(iops) } else { Requirement::WriteIops(iops) }
            }
            "read" | "write" => {
                let rate =
                    number * scale(unit.strip_suffix("/s").ok_or_else(wrong)?, "b").ok_or_else(wrong)?;
                if what == "read" { Requirement::Read(rate) } else { Requirement::Write(rate) }
            }
            "usable" => Requirement::Usable(number * scale(unit, "b").ok_or_else(wrong)?),
            "loss" if unit.is_empty() && number <= 1.0 => Requirement::Loss(number),
            _ => return Err(wrong()),
        };
        Ok(goal)
    }
}

/// The factor of `k`, `m`, `gi`... before `unit`.
fn scale(text: &str, unit: &str) -> Option<f64> {
    let prefix = text.strip_suffix(unit)?;
    let (letter, base) = match prefix.strip_suffix('i') {
        Some(letter) => (letter, 1024.0f64),
        None => (prefix, 1000.0),
    };
    let power = match letter {
        "" if base == 1000.0 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return None,
    };
    Some(base.powi(power))
}

/// Result of the search.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SearchResult {
    /// The description with the found counts.
    pub description: Description,
    /// Its plan.
    pub plan: Plan,
    /// The goal that one server less fails to meet; `None` if the scheme requires that many.
    pub decides: Option<Requirement>,
}

/// Searches for the smallest configuration: the fewest servers of the last kind described (the
/// others stay as they are), and of those configurations the one with the fewest drives in each of
/// these servers, at most as many as described.
///
/// Errors: the description is invalid, or no number of servers up to [`MAX_SERVERS`] meets all
/// goals.
pub fn search(description: &Description, goals: &[Requirement]) -> Result<SearchResult> {
    // An invalid description is refused at once, and not as a goal that can't be met.
    let mut largest = description.clone();
    set_size(&mut largest, MAX_SERVERS, None)?;
    let largest = plan(&largest)?;
    let mut before: Option<Plan> = None;
    for servers in 1..=MAX_SERVERS {
        let mut tried = description.clone();
        set_size(&mut tried, servers, None)?;
        // Too few servers for the scheme or the racks.
        let Ok(full) = plan(&tried) else { continue };
        if goals.iter().all(|goal| goal.is_met(&full)) {
            let decides = before.and_then(|plan| goals.iter().copied().find(|goal| !goal.is_met(&plan)));
            let (description, plan) = with_fewest_drives(tried, full, goals)?;
            return Ok(SearchResult { description, plan, decides });
        }
        before = Some(full);
    }
    let missed = goals.iter().find(|goal| !goal.is_met(&largest)).or(goals.first());
    let (reached, help) = missed.map_or((String::new(), ""), |goal| goal.unmet_reason(&largest));
    let name = missed.map(Requirement::to_string).unwrap_or_default();
    let message =
        format!("no configuration reaches {name} with the other goals: {MAX_SERVERS} servers give {reached}");
    Err(invalid(message, help))
}

fn set_size(description: &mut Description, count: u32, drives: Option<u32>) -> Result<()> {
    let none =
        || invalid("the description has no servers", "add a [[server]] with count, drives, drive and link");
    let server = description.server.last_mut().ok_or_else(none)?;
    server.count = count;
    server.drives = drives.unwrap_or(server.drives);
    Ok(())
}

fn with_fewest_drives(
    described: Description,
    full: Plan,
    goals: &[Requirement],
) -> Result<(Description, Plan)> {
    let server = described.server.last().expect("a plan of it was made");
    let (count, step, most) = (server.count, server.drives_per_target, server.drives);
    for drives in (step..most).step_by(step as usize) {
        let mut tried = described.clone();
        set_size(&mut tried, count, Some(drives))?;
        let fewer = plan(&tried)?;
        if goals.iter().all(|goal| goal.is_met(&fewer)) {
            return Ok((tried, fewer));
        }
    }
    Ok((described, full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Clients, Pool, Server};

    fn goal(text: &str) -> Requirement {
        text.parse().unwrap()
    }

    fn described() -> Description {
        let server = Server {
            drives: 12,
            drive: "nvme-gen4-7.68tb".into(),
            links: 2,
            cores: Some(32),
            ..Server::of("100gbe")
        };
        let pool = Pool { spare_percent: 10.0, ..Pool::of("mirror:2".parse().unwrap()) };
        Description { pool, server: vec![server], ..Description::default() }
    }

    #[test]
    fn goals_are_written_as_people_write_them() {
        assert_eq!(goal("100 GB/s read"), Requirement::Read(100e9));
        assert_eq!(goal("1.5TiB/s  write"), Requirement::Write(1.5 * 1024f64.powi(4)));
        assert_eq!(goal("3.5M IOPS read"), Requirement::ReadIops(3.5e6));
        assert_eq!(goal("250000 iops write"), Requirement::WriteIops(250e3));
        assert_eq!(goal("2 PB usable"), Requirement::Usable(2e15));
        assert_eq!(goal("1e-6 loss"), Requirement::Loss(1e-6));
        for wrong in [
            "",
            "read",
            "GB/s read",
            "-1 GB/s read",
            "100 GB read",
            "5 XB/s read",
            "5 usable cows",
            "2 loss",
            "inf GB/s read",
        ] {
            assert!(wrong.parse::<Requirement>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_found_one_reaches_all_and_a_smaller_one_does_not() {
        let goals = [goal("100 GB/s read"), goal("60 GB/s write"), goal("1 PB usable"), goal("3M IOPS read")];
        let found = search(&described(), &goals).unwrap();
        assert!(goals.iter().all(|goal| goal.is_met(&found.plan)));
        let server = &found.description.server[0];
        for (count, drives) in [(server.count - 1, 12), (server.count, server.drives - 1)] {
            let mut smaller = described();
            set_size(&mut smaller, count, Some(drives)).unwrap();
            let smaller = plan(&smaller).unwrap();
            assert!(goals.iter().any(|goal| !goal.is_met(&smaller)), "{count} {drives}");
        }
        assert!(found.decides.is_some());
    }

    #[test]
    fn unreachable_goals_are_refused_with_the_bottleneck() {
        let clients = Clients { count: 4, links: 1, link: "100gbe".into(), threads: None, outstanding: None };
        let few = Description { clients: Some(clients), ..described() };
        let error = search(&few, &[goal("100 GB/s read")]).unwrap_err();
        assert!(error.message.contains("100 GB/s read") && error.message.contains("client links"), "{error}");
        let single = Description { pool: Pool::default(), ..described() };
        let error = search(&single, &[goal("1e-9 loss"), goal("10 GB/s read")]).unwrap_err();
        assert!(error.message.contains("loss") && error.hint.contains("scheme"), "{error}");
    }
}
