//! Rates: for each kind of load, the rate that each resource alone would allow.
//!
//! Bottleneck analysis (Denning and Buzen: "The Operational Analysis of Queueing Network Models",
//! ACM Computing Surveys 10(3), 1978): a resource with `d` visits for each unit of work and a
//! service rate of `c` a second allows `c / d`, and the resource with the smallest quotient is the
//! bottleneck. Files are striped over all targets alike, so that a target of the weakest kind of
//! server slows down all others: the sum counts each target like the weakest.

use super::site::{ServerKind, Site};
use serde::{Serialize, Serializer};
use std::fmt;

/// Size of a small request in bytes.
const SMALL: f64 = 4096.0;
/// Share of reads in the mixed load that is published as "70/30".
const MIXED_READS: f64 = 0.7;

/// A resource that can be the bottleneck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// The drives of the servers.
    Drives,
    /// The network links of the servers.
    ServerLinks,
    /// The cores of the servers.
    Cores,
    /// The network links of the clients.
    ClientLinks,
    /// The programs on the clients.
    Threads,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Drives => "drives",
            Resource::ServerLinks => "server links",
            Resource::Cores => "server cores",
            Resource::ClientLinks => "client links",
            Resource::Threads => "client programs",
        })
    }
}

impl Serialize for Resource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Rate that one resource alone would allow.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Limit {
    /// The resource.
    pub resource: Resource,
    /// Bytes or requests a second.
    pub per_s: f64,
}

/// A rate, and its bottleneck.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedRate {
    /// Bytes or requests a second.
    pub per_s: f64,
    /// The bottleneck.
    pub binds: Resource,
    /// All limits, lowest first.
    pub limits: Vec<Limit>,
}

impl PlannedRate {
    fn of(limits: impl IntoIterator<Item = (Resource, Option<f64>)>) -> PlannedRate {
        let known =
            limits.into_iter().filter_map(|(resource, per_s)| Some(Limit { resource, per_s: per_s? }));
        let mut limits: Vec<Limit> = known.collect();
        limits.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
        let lowest = limits[0];
        PlannedRate { per_s: lowest.per_s, binds: lowest.resource, limits }
    }

    /// The same limits, multiplied by `share`.
    pub(super) fn times(&self, share: f64) -> PlannedRate {
        let limits = self.limits.iter().map(|limit| Limit { per_s: limit.per_s * share, ..*limit }).collect();
        PlannedRate { per_s: self.per_s * share, binds: self.binds, limits }
    }
}

/// All rates.
pub(super) struct PlannedRates {
    pub read: PlannedRate,
    pub write: PlannedRate,
    pub random_read: PlannedRate,
    pub random_write: PlannedRate,
    pub mixed: PlannedRate,
}

/// The rates of a site.
pub(super) fn rates(site: &Site) -> PlannedRates {
    PlannedRates {
        read: sequential(site, 1.0, 1.0, |kind| kind.target_read()),
        write: sequential(
            site,
            site.pool.scheme.stored_per_byte(),
            site.pool.scheme.sent_per_byte(),
            |kind| kind.target_write(),
        ),
        random_read: random(site, 1.0),
        random_write: random(site, 0.0),
        mixed: random(site, MIXED_READS),
    }
}

/// Total rate of all targets if each has that of the weakest kind of server.
fn over_targets(site: &Site, of_server: impl Fn(&ServerKind) -> Option<f64>) -> Option<f64> {
    let of_target = site.kinds.iter().map(|kind| Some(of_server(kind)? / kind.targets()));
    // A kind without a known rate is not a limit.
    let weakest = of_target.flatten().fold(f64::INFINITY, f64::min);
    weakest.is_finite().then(|| weakest * site.targets())
}

/// Large transfers: for each byte, `stored` bytes reach servers and their drives, of which clients
/// send `sent`. The primary sends a replica to another server, so a byte with n replicas takes n
/// bytes of the servers' receiving links.
fn sequential(site: &Site, stored: f64, sent: f64, of_target: impl Fn(&ServerKind) -> f64) -> PlannedRate {
    let model = site.model;
    let drives = over_targets(site, |kind| Some(of_target(kind) * kind.targets() / stored));
    let links = over_targets(site, |kind| Some(kind.links_bytes_per_s * model.link_share / stored));
    let cores =
        over_targets(site, |kind| Some(f64::from(kind.server.cores?) * model.core_bytes_per_s? / stored));
    PlannedRate::of([
        (Resource::Drives, drives),
        (Resource::ServerLinks, links),
        (Resource::Cores, cores),
        (Resource::ClientLinks, client_links(site).map(|rate| rate / sent)),
        (Resource::Threads, threads(site)),
    ])
}

fn client_links(site: &Site) -> Option<f64> {
    let (clients, bytes_per_s) = site.clients?;
    Some(f64::from(clients.count) * bytes_per_s * site.model.link_share)
}

fn threads(site: &Site) -> Option<f64> {
    let (clients, _) = site.clients?;
    Some(f64::from(clients.count) * f64::from(clients.threads?) * site.model.thread_bytes_per_s?)
}

/// Small requests, a share `reads` of them reads. A write takes the accesses of its scheme. Each
/// read takes 1 / read IOPS of a drive's second, each write 1 / write IOPS. Each access after the
/// first takes `copy_work` of a core's request.
fn random(site: &Site, reads: f64) -> PlannedRate {
    let (model, scheme, writes) = (site.model, site.pool.scheme, 1.0 - reads);
    let (write_reads, write_writes) = scheme.small_write();
    let accesses = write_reads + write_writes;
    let drives = over_targets(site, |kind| {
        let raid = kind.server.raid.stored_per_byte();
        let (drive, drives) = (&kind.drive, f64::from(kind.server.drives));
        let time = |accesses: f64, iops: Option<f64>| {
            if accesses > 0.0 { iops.map(|iops| accesses / iops) } else { Some(0.0) }
        };
        let read = time(reads + writes * write_reads, drive.read_iops)?;
        let write = time(writes * write_writes * raid, drive.write_iops)?;
        Some(drives / (read + write))
    });
    let work = reads + writes * (1.0 + (accesses - 1.0) * model.copy_work);
    let cores =
        over_targets(site, |kind| Some(f64::from(kind.server.cores?) * model.core_requests_per_s? / work));
    // The busier direction: read data is sent, written data is received once for each access that
    // writes.
    let bytes = SMALL * reads.max(writes * write_writes);
    let links = over_targets(site, |kind| Some(kind.links_bytes_per_s * model.link_share / bytes));
    let clients = client_links(site).map(|rate| rate / (SMALL * reads.max(writes)));
    PlannedRate::of([
        (Resource::Drives, drives),
        (Resource::ServerLinks, links),
        (Resource::Cores, cores),
        (Resource::ClientLinks, clients),
    ])
}
