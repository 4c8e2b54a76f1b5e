//! The catalogue of findings, as `weft help CODE` prints it.
//!
//! The codes are defined where findings are made, with their meaning and remedy. A test compares
//! `docs/reference/findings.md` with this catalogue.

use wire::mgmt::HealthCode;

/// What administrators should know about the code of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatalogueEntry {
    /// The stable name.
    pub name: &'static str,
    /// The command that reports the finding.
    pub command: &'static str,
    /// What is the case.
    pub meaning: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// Returns an entry for each code, in the order of the reference.
pub fn entries() -> impl Iterator<Item = CatalogueEntry> {
    let health =
        HealthCode::ALL.iter().map(|code| (code.name(), "weft health", code.meaning(), code.remedy()));
    let fsck = fsck::Kind::ALL.iter().map(|kind| (kind.name(), "weft fsck", kind.meaning(), kind.remedy()));
    let doctor =
        doctor::Code::ALL.iter().map(|code| (code.name(), "weft doctor", code.meaning(), code.remedy()));
    let entry = |(name, command, meaning, remedy)| CatalogueEntry { name, command, meaning, remedy };
    health.chain(fsck).chain(doctor).map(entry)
}

impl CatalogueEntry {
    /// Returns the entry as text for people.
    pub fn text(&self) -> String {
        let CatalogueEntry { name, command, meaning, remedy } = self;
        format!("{name}: a finding of {command}\n\n{meaning}\nWhat to do: {remedy}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_code_names_one_finding() {
        let names: BTreeSet<&str> = entries().map(|entry| entry.name).collect();
        assert_eq!(names.len(), entries().count());
        let is_plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(names.iter().all(is_plain), "{names:?}");
    }

    #[test]
    fn findings_of_fsck_have_their_codes_in_json() {
        for kind in fsck::Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
