//! Computation of a plan from a description.

use super::capacity::{Capacity, capacity};
use super::rates::{PlannedRate, rates};
use super::rebuild::{Rebuild, RebuildPlace, rebuild};
use super::reliability::{LossModel, of_site};
use super::site::{Site, site};
use super::{Description, PlannedScheme};
use serde::Serialize;
use types::Result;

/// Predicted properties of a configuration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    /// The description's name.
    pub name: String,
    /// Redundancy scheme of files.
    pub scheme: PlannedScheme,
    /// Number of servers.
    pub servers: u32,
    /// Number of data drives.
    pub drives: u64,
    /// Number of targets.
    pub targets: u64,
    /// Height of all servers in rack units.
    pub rack_units: u64,
    /// Capacities.
    pub capacity: Capacity,
    /// Reading many large files, bytes a second.
    pub read: PlannedRate,
    /// Writing them.
    pub write: PlannedRate,
    /// Reading one large file from all clients, bytes a second.
    pub shared_read: PlannedRate,
    /// Writing it.
    pub shared_write: PlannedRate,
    /// Bytes a second of one program with one file, reading or writing; if the model has it.
    pub thread_bytes_per_s: Option<f64>,
    /// Random reads of 4 KiB a second.
    pub random_read: PlannedRate,
    /// Random writes of 4 KiB a second.
    pub random_write: PlannedRate,
    /// Random requests of 4 KiB a second, 70 % of them reads.
    pub mixed: PlannedRate,
    /// Mean latency of a random read, a random write and a mixed request, in seconds, if the number
    /// of requests in flight is known.
    pub latency_s: Option<[f64; 3]>,
    /// The rebuild of a lost target; `None` without redundancy.
    pub rebuild: Option<Rebuild>,
    /// The probability of data loss, with the model's parameters.
    pub reliability: LossModel,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// Plans a description.
///
/// Errors: the description is invalid; the error names object and remedy.
pub fn plan(description: &Description) -> Result<Plan> {
    let site = site(description)?;
    let rates = rates(&site);
    let rebuild = rebuild(&site);
    let reliability = of_site(&site, rebuild.as_ref())?;
    let capacity = capacity(&site);
    let notes = notes(&site, &capacity, rebuild.as_ref(), &rates.random_read);
    // Little's law: requests in flight = rate x latency.
    let latency = |outstanding: f64| {
        [&rates.random_read, &rates.random_write, &rates.mixed].map(|rate| outstanding / rate.per_s)
    };
    let outstanding = site
        .clients
        .and_then(|(clients, _)| Some(f64::from(clients.outstanding?) * f64::from(clients.count)));
    Ok(Plan {
        name: description.name.clone(),
        scheme: site.pool.scheme,
        servers: site.servers(),
        drives: site.sum(|kind| f64::from(kind.server.drives)) as u64,
        targets: site.targets() as u64,
        rack_units: site.sum(|kind| f64::from(kind.server.rack_units)) as u64,
        shared_read: rates.read.times(site.model.shared_read_share),
        shared_write: rates.write.times(site.model.shared_write_share),
        thread_bytes_per_s: site.model.thread_bytes_per_s,
        latency_s: outstanding.map(latency),
        read: rates.read,
        write: rates.write,
        random_read: rates.random_read,
        random_write: rates.random_write,
        mixed: rates.mixed,
        capacity,
        rebuild,
        reliability,
        notes,
    })
}

fn notes(site: &Site, capacity: &Capacity, rebuild: Option<&Rebuild>, random: &PlannedRate) -> Vec<String> {
    let mut notes = Vec::new();
    let scheme = site.pool.scheme;
    match scheme {
        PlannedScheme::Single => {
            notes.push("scheme single has no redundancy: the content of a target is lost with it".into())
        }
        PlannedScheme::Ec { .. } => {
            notes.push(format!("{scheme} can be planned, but this version of weft can't create such groups"))
        }
        PlannedScheme::Mirror(copies) if types::Scheme::from_replicas(copies.min(255) as u8).is_none() => {
            notes.push(format!(
                "{scheme} can be planned, but weft supports at most {} replicas",
                types::Scheme::MAX_REPLICAS
            ));
        }
        PlannedScheme::Mirror(_) => {}
    }
    if rebuild.is_some_and(|rebuild| rebuild.place == RebuildPlace::Replacement) {
        notes.push("a lost target doesn't fit elsewhere: it is rebuilt after its drives are replaced; raise spare_percent, or add servers".into());
    } else if rebuild.is_some() && capacity.spare_bytes < capacity.spare_for_a_server_bytes {
        notes.push("the spare capacity can absorb a target's content, not a whole server's".into());
    }
    if rebuild.is_some() && site.domains() == u32::from(scheme.members()) {
        notes.push("each group spans all failure domains: a lost domain must return before its groups are fully redundant again".into());
    }
    if capacity.metadata_given_bytes > 0.0 && capacity.metadata_given_bytes < capacity.metadata_needed_bytes {
        notes.push("the metadata drives are too small for this amount of data: add metadata capacity".into());
    }
    if !random.limits.iter().any(|limit| limit.resource == super::Resource::Drives) {
        notes.push(
            "the random rates of the drives are unknown (read_iops, write_iops), so they aren't a limit"
                .into(),
        );
    }
    notes
}
