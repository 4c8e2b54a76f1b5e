//! Redundancy schemes that can be planned.

use super::invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use types::Error;

/// Most members of a planned group: with more, one failure affects too many groups at once to be
/// worth planning.
const MAX_MEMBERS: u16 = 32;

/// Redundancy scheme of a group: `single`, `mirror:2`, `ec:4+2`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Default)]
#[serde(into = "String", try_from = "String")]
pub enum PlannedScheme {
    /// One target, no redundancy.
    #[default]
    Single,
    /// This many replicas on different targets.
    Mirror(u16),
    /// Data and parity fragments; any `data` of them serve a read.
    Ec {
        /// Number of data fragments.
        data: u16,
        /// Number of parity fragments.
        parity: u16,
    },
}

impl PlannedScheme {
    /// Number of targets in a group.
    pub fn members(self) -> u16 {
        match self {
            Self::Single => 1,
            Self::Mirror(copies) => copies,
            Self::Ec { data, parity } => data + parity,
        }
    }

    /// Members that may be lost without data loss.
    pub fn tolerates(self) -> u16 {
        match self {
            Self::Single => 0,
            Self::Mirror(copies) => copies - 1,
            Self::Ec { parity, .. } => parity,
        }
    }

    /// Share of stored bytes that is data.
    pub fn data_share(self) -> f64 {
        1.0 / self.stored_per_byte()
    }

    /// Bytes that all members together store, and write to drives, for each byte of a large write.
    pub fn stored_per_byte(self) -> f64 {
        match self {
            Self::Single => 1.0,
            Self::Mirror(copies) => f64::from(copies),
            Self::Ec { data, parity } => f64::from(data + parity) / f64::from(data),
        }
    }

    /// Bytes that a client sends for each byte of a large write: the client computes parity, the
    /// primary sends replicas.
    pub fn sent_per_byte(self) -> f64 {
        match self {
            Self::Single | Self::Mirror(_) => 1.0,
            Self::Ec { .. } => self.stored_per_byte(),
        }
    }

    /// Drive reads and writes of a small write: a write for each replica; with parity the old data
    /// and the old parity are read, and the new ones written (Patterson, Gibson, Katz: "A Case for
    /// Redundant Arrays of Inexpensive Disks (RAID)", SIGMOD 1988: the small write of their levels
    /// 4 and 5 takes four accesses with one parity).
    pub fn small_write(self) -> (f64, f64) {
        match self {
            Self::Single => (0.0, 1.0),
            Self::Mirror(copies) => (0.0, f64::from(copies)),
            Self::Ec { parity, .. } => (f64::from(1 + parity), f64::from(1 + parity)),
        }
    }

    /// Bytes that are read for each rebuilt byte.
    pub fn read_per_lost_byte(self) -> f64 {
        match self {
            Self::Single | Self::Mirror(_) => 1.0,
            Self::Ec { data, .. } => f64::from(data),
        }
    }
}

impl fmt::Display for PlannedScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("single"),
            Self::Mirror(copies) => write!(f, "mirror:{copies}"),
            Self::Ec { data, parity } => write!(f, "ec:{data}+{parity}"),
        }
    }
}

impl FromStr for PlannedScheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            invalid(
                format!("{text:?} is not a scheme that can be planned"),
                format!("write single, mirror:2 or for example ec:4+2, with at most {MAX_MEMBERS} members"),
            )
        };
        let number =
            |text: &str| text.parse::<u16>().ok().filter(|n| (1..=MAX_MEMBERS).contains(n)).ok_or_else(wrong);
        let scheme = match text.split_once(':') {
            None if text == "single" => Self::Single,
            Some(("mirror", copies)) => Self::Mirror(number(copies)?),
            Some(("ec", pieces)) => {
                let (data, parity) = pieces.split_once('+').ok_or_else(wrong)?;
                Self::Ec { data: number(data)?, parity: number(parity)? }
            }
            _ => return Err(wrong()),
        };
        let fits = (1..=MAX_MEMBERS).contains(&scheme.members()) && scheme != Self::Mirror(1);
        fits.then_some(scheme).ok_or_else(wrong)
    }
}

impl From<PlannedScheme> for String {
    fn from(scheme: PlannedScheme) -> String {
        scheme.to_string()
    }
}

impl TryFrom<String> for PlannedScheme {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_written_as_they_are_read() {
        for text in ["single", "mirror:2", "mirror:3", "ec:4+2", "ec:16+4"] {
            assert_eq!(text.parse::<PlannedScheme>().unwrap().to_string(), text);
        }
        for text in
            ["", "raid", "mirror", "mirror:0", "mirror:1", "mirror:33", "ec:4", "ec:0+2", "ec:4+0", "ec:30+3"]
        {
            assert!(text.parse::<PlannedScheme>().is_err(), "{text}");
        }
    }

    #[test]
    fn costs_of_a_byte_by_scheme() {
        let ec: PlannedScheme = "ec:4+2".parse().unwrap();
        assert_eq!(
            (ec.members(), ec.tolerates(), ec.stored_per_byte(), ec.sent_per_byte()),
            (6, 2, 1.5, 1.5)
        );
        assert_eq!((ec.small_write(), ec.read_per_lost_byte()), ((3.0, 3.0), 4.0));
        let mirror = PlannedScheme::Mirror(3);
        assert_eq!((mirror.tolerates(), mirror.stored_per_byte(), mirror.sent_per_byte()), (2, 3.0, 1.0));
    }
}
