//! The table: medians per system, and the speed of weft relative to peers.

use super::workloads::{Sample, Unit};
use std::fmt;

/// Columns before the peers: the ceiling, one process, two processes.
const CEILING: usize = 0;
const TWO: usize = 2;
const FIRST_PEER: usize = 3;

/// One workload on all systems.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    /// Per system, the samples of all rounds.
    pub(super) samples: Vec<Vec<Sample>>,
}

/// All rows.
pub(super) struct Table {
    pub(super) names: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers = if self.names.len() > FIRST_PEER { " 2 processes / best peer |" } else { "" };
        writeln!(
            f,
            "| workload | unit | {} | 2 processes / {} |{peers}",
            self.names.join(" | "),
            self.names[CEILING]
        )?;
        let columns = 3 + self.names.len() + usize::from(!peers.is_empty());
        writeln!(f, "|{}", "---|".repeat(columns))?;
        self.rows.iter().try_for_each(|row| row.fmt(f))
    }
}

impl Row {
    /// Returns the median of a system's rounds by rate, the lower of two middle values.
    fn median(&self, system: usize) -> Option<Sample> {
        let mut sorted = self.samples.get(system)?.clone();
        sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }

    fn times(&self, of: Option<f64>) -> String {
        match (self.median(TWO), of) {
            (Some(own), Some(other)) if other > 0.0 => format!("{:.2}", own.rate / other),
            _ => "-".into(),
        }
    }

    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.unit == Unit::MibPerS { "MiB/s" } else { "1/s" };
        write!(f, "| {} | {unit} |", self.name)?;
        for system in 0..self.samples.len() {
            match self.median(system) {
                Some(sample) => write!(f, " {} [{}] |", rounded(sample.rate), rounded(sample.cpu_us))?,
                None => write!(f, " - |")?,
            }
        }
        write!(f, " {} |", self.times(self.median(CEILING).map(|ceiling| ceiling.rate)))?;
        if self.samples.len() > FIRST_PEER {
            let peers = (FIRST_PEER..self.samples.len()).filter_map(|peer| self.median(peer));
            write!(f, " {} |", self.times(peers.map(|peer| peer.rate).reduce(f64::max)))?;
        }
        writeln!(f)
    }
}

/// Formats with three significant digits, and commas between thousands.
pub(super) fn rounded(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.1}");
    }
    let digits = value.abs().log10().floor() as i32 - 3;
    let unit = if digits > 0 { 10f64.powi(digits) } else { 1.0 };
    let whole = ((value / unit).round() * unit) as u64;
    let text = whole.to_string();
    let mut grouped = String::new();
    for (at, digit) in text.chars().enumerate() {
        if at > 0 && (text.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rates: &[f64]) -> Vec<Sample> {
        rates.iter().map(|rate| Sample { rate: *rate, cpu_us: 5.0 }).collect()
    }

    #[test]
    fn figures_are_rounded_to_what_they_can_say() {
        let cases = [
            (1.234, "1.2"),
            (12.6, "13"),
            (2468.0, "2,468"),
            (191_634.0, "191,600"),
            (1_234_567.0, "1,235,000"),
        ];
        for (value, text) in cases {
            assert_eq!(rounded(value), text);
        }
    }

    #[test]
    fn ratios_are_of_medians_and_of_the_better_peer() {
        let own = [samples(&[400.0]), samples(&[350.0]), samples(&[900.0, 100.0, 300.0])];
        let row = |peers: &[&[f64]]| Row {
            name: "write",
            unit: Unit::MibPerS,
            samples: own.iter().cloned().chain(peers.iter().map(|rates| samples(rates))).collect(),
        };
        let table = |names: &[&str], row: Row| {
            Table { names: names.iter().map(|name| name.to_string()).collect(), rows: vec![row] }.to_string()
        };
        assert_eq!(
            table(&["x", "1", "2"], row(&[])),
            "| workload | unit | x | 1 | 2 | 2 processes / x |\n|---|---|---|---|---|---|\n\
             | write | MiB/s | 400 [5.0] | 350 [5.0] | 300 [5.0] | 0.75 |\n"
        );
        let beside = table(&["x", "1", "2", "a", "b"], row(&[&[100.0], &[150.0, 10.0, 160.0]]));
        assert!(beside.ends_with("| 100 [5.0] | 150 [5.0] | 0.75 | 2.00 |\n"), "{beside}");
    }
}
