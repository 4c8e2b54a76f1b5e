//! The table.

use super::model::{LinkRates, Simulated};
use super::real_cluster::Real;
use super::{COMMAND, Case, Options, server_loss};
use scale::Resource;
use std::fmt;
use std::process::Command;

const MB: f64 = 1e6;

/// A case, measured and predicted.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) real: Real,
    pub(super) simulated: Simulated,
}

impl Row {
    /// Returns the ratio of prediction to measurement.
    fn ratio(&self) -> f64 {
        self.simulated.bytes_per_s / self.real.bytes_per_s
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { servers, clients, programs, scheme, writes, degraded } = self.case;
        let what = if writes { "write" } else { "read" };
        let lost = if degraded { " - 1" } else { "" };
        let (resource, share) = self.simulated.busiest;
        write!(
            f,
            "| {what} {scheme} | {servers}{lost} | {clients} x {programs} | {:.1} | {:.1} | {:.2} | {} {:.0} % | {} {:.0} % | {:.0} % |",
            self.real.bytes_per_s / MB,
            self.simulated.bytes_per_s / MB,
            self.ratio(),
            self.real.busiest.0,
            100.0 * self.real.busiest.1,
            binding(resource),
            100.0 * share,
            100.0 * self.real.cores,
        )
    }
}

fn binding(resource: Resource) -> &'static str {
    match resource {
        Resource::Targets => "drives",
        Resource::ServerLinks => "server",
        Resource::ServerCores => "cores",
        Resource::ClientLinks => "client",
    }
}

/// All rows.
#[derive(Default)]
pub(super) struct Table {
    pub(super) wires: LinkRates,
    pub(super) rows: Vec<Row>,
    pub(super) rebuilt: Vec<server_loss::Row>,
}

impl Table {
    /// Formats the table for a document.
    pub(super) fn markdown(&self, options: &Options) -> String {
        let mut text = format!("{}\n", setting(options, self.wires));
        if !self.rows.is_empty() {
            text += &format!("{}\n\n", self.summary());
            text += "| what | servers | clients x programs | real, MB/s | simulated, MB/s | simulated / real | busiest link | busiest in the simulation | cores |\n";
            text += "|---|---|---|---|---|---|---|---|---|\n";
            self.rows.iter().for_each(|row| text += &format!("{row}\n"));
        }
        if !self.rebuilt.is_empty() {
            text += "\n| servers, one of them lost | copied, MiB | s | copied in the simulation, MiB | s | real / simulated |\n";
            text += "|---|---|---|---|---|---|\n";
            self.rebuilt.iter().for_each(|row| text += &format!("{row}\n"));
        }
        text
    }

    /// Summarises how many rows deviate by how much.
    fn summary(&self) -> String {
        let mut ratios: Vec<f64> = self.rows.iter().map(Row::ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let within = |part: f64| ratios.iter().filter(|ratio| (*ratio - 1.0).abs() <= part).count();
        format!(
            "Of {} rows {} are within 5 %, {} within 10 %, {} within 15 %; simulated / real has a median of {:.2}, range {:.2} to {:.2}.",
            ratios.len(),
            within(0.05),
            within(0.10),
            within(0.15),
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
        )
    }
}

/// Describes what was run, where and when, which the table needs to be meaningful.
fn setting(options: &Options, wires: LinkRates) -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_string()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let list = |numbers: &[u8]| numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    format!(
        "{date}, {cores} cores; `{COMMAND} --servers {} --clients {} --programs {} --server-mbit {} --client-mbit {} --seconds {}`: a connection gets {:.2} MB/s of a server's wire and {:.2} MB/s of a client's, for rebuilds a {}th of that.\n",
        list(&options.servers),
        list(&options.clients),
        list(&options.programs),
        options.server_mbit,
        options.client_mbit,
        options.seconds,
        wires.server / MB,
        wires.client / MB,
        server_loss::SLOWER,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Scheme;

    #[test]
    fn rows_and_their_summary() {
        let case = Case {
            servers: 3,
            clients: 2,
            programs: 4,
            scheme: Scheme::Mirror(2),
            writes: true,
            degraded: true,
        };
        let row = |real| Row {
            case,
            real: Real { bytes_per_s: real, cores: 0.25, busiest: ("server", 0.9) },
            simulated: Simulated { bytes_per_s: 30e6, busiest: (Resource::ClientLinks, 1.0) },
        };
        let table = Table {
            wires: LinkRates::default(),
            rows: vec![row(30e6), row(28e6), row(20e6)],
            rebuilt: Vec::new(),
        };
        let said = table.rows[2].to_string();
        assert_eq!(
            said,
            "| write mirror:2 | 3 - 1 | 2 x 4 | 20.0 | 30.0 | 1.50 | server 90 % | client 100 % | 25 % |"
        );
        assert!(table.summary().starts_with("Of 3 rows 1 are within 5 %, 2 within 10 %, 2 within 15 %"));
        assert!(table.summary().ends_with("a median of 1.07, range 1.00 to 1.50."));
    }
}
