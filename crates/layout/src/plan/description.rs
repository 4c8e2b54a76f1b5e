//! Input of a plan.

use super::{Drive, Link, PlannedScheme, Provision};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Servers, drives, links, clients, pool.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name in reports.
    #[serde(default)]
    pub name: String,
    /// The pool of all targets.
    #[serde(default)]
    pub pool: Pool,
    /// Kinds of servers.
    #[serde(default)]
    pub server: Vec<Server>,
    /// The clients; without them they are not a limit.
    pub clients: Option<Clients>,
    /// Efficiency of the system on its hardware.
    #[serde(default)]
    pub model: Model,
    /// Kinds of drives beside the presets, by name.
    #[serde(default)]
    pub drive: BTreeMap<String, Drive>,
    /// Kinds of links beside the presets, by name.
    #[serde(default)]
    pub link: BTreeMap<String, Link>,
    /// A file system whose throughput is sold by the TiB.
    pub provision: Option<Provision>,
}

/// The pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Redundancy scheme of files.
    pub scheme: PlannedScheme,
    /// Share of each target that is reserved to rebuild lost targets, in percent.
    pub spare_percent: f64,
    /// Racks over which the servers are distributed evenly; 0: each server is a failure domain of
    /// its own.
    pub racks: u32,
    /// Fill level of targets when one is lost, in percent of the usable capacity.
    pub full_percent: f64,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { scheme: PlannedScheme::Single, spare_percent: 0.0, racks: 0, full_percent: 80.0 }
    }
}

impl Pool {
    /// A pool of a scheme, without spare.
    pub fn of(scheme: PlannedScheme) -> Pool {
        Pool { scheme, ..Pool::default() }
    }
}

/// RAID level of a target's drives, below the local file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Raid {
    /// Striped without redundancy; also for a single drive.
    #[default]
    #[serde(rename = "0")]
    Striped,
    /// Mirrored pairs.
    #[serde(rename = "10")]
    Mirrored,
}

impl Raid {
    /// Bytes on drives for each byte stored.
    pub fn stored_per_byte(self) -> f64 {
        match self {
            Raid::Striped => 1.0,
            Raid::Mirrored => 2.0,
        }
    }
}

/// A kind of server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Number of servers.
    pub count: u32,
    /// Number of data drives in each.
    pub drives: u32,
    /// Kind of the data drives.
    pub drive: String,
    /// Number of drives in a target.
    #[serde(default = "one")]
    pub drives_per_target: u32,
    /// RAID level of a target.
    #[serde(default)]
    pub raid: Raid,
    /// Number of network links of each.
    #[serde(default = "one")]
    pub links: u32,
    /// Kind of the links.
    pub link: String,
    /// Number of cores that answer requests; without it they are not a limit.
    pub cores: Option<u32>,
    /// Number of metadata drives, in mirrored pairs.
    #[serde(default)]
    pub metadata_drives: u32,
    /// Kind of the metadata drives; by default that of the data drives.
    pub metadata_drive: Option<String>,
    /// Height in rack units.
    #[serde(default = "one")]
    pub rack_units: u32,
}

fn one() -> u32 {
    1
}

impl Server {
    /// One server with one link of a kind and nothing else, as a base for further fields.
    pub fn of(link: &str) -> Server {
        Server {
            name: String::new(),
            count: 1,
            drives: 0,
            drive: String::new(),
            drives_per_target: 1,
            raid: Raid::Striped,
            links: 1,
            link: link.into(),
            cores: None,
            metadata_drives: 0,
            metadata_drive: None,
            rack_units: 1,
        }
    }
}

/// The clients.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// Number of clients.
    pub count: u32,
    /// Number of network links of each.
    #[serde(default = "one")]
    pub links: u32,
    /// Kind of the links.
    pub link: String,
    /// Number of programs on each that read or write one file each; without it they are not a
    /// limit.
    pub threads: Option<u32>,
    /// Number of small requests that each has in flight at a time; with it latencies are computed.
    pub outstanding: Option<u32>,
}

/// Efficiency of a system on its hardware. The defaults are weft's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Share of a link's rate that payload reaches. The two published systems that are limited by
    /// their links reach 0.95 and 0.86.
    pub link_share: f64,
    /// Bytes a second that a server core moves between network and drive. Two processes of weft on
    /// one machine take 649 us of CPU for a MiB read, the reading program and the client included
    /// (`docs/performance.md`); half is attributed to the server.
    pub core_bytes_per_s: Option<f64>,
    /// Small requests a second that a server core answers. In the same way: 8.8 us for a read of 4
    /// KiB, half of it attributed to the server.
    pub core_requests_per_s: Option<f64>,
    /// CPU cost of each further drive access of a small write, in small requests: 1 where it is a
    /// request to another service.
    pub copy_work: f64,
    /// Bytes a second of one program that reads or writes one file. weft: 1 job over TCP, write
    /// (`docs/performance.md`).
    pub thread_bytes_per_s: Option<f64>,
    /// Rate of reading one file from all clients, relative to that of reading many files. weft:
    /// `docs/performance.md`, N-1 over N-N.
    pub shared_read_share: f64,
    /// Rate of writing one file from all clients, relative to that of writing many files. weft: a
    /// file that grows.
    pub shared_write_share: f64,
    /// Share of a target that files can use: the rest is the local file system's overhead.
    pub usable_share: f64,
    /// Capacity for metadata, relative to that for data.
    pub metadata_share: f64,
    /// Share of drives and links that a rebuild may use. weft gives it a fifth of the time.
    pub rebuild_share: f64,
    /// Highest rebuild rate of one target, bytes a second. weft's default rate of a member's resync
    /// is 256 MiB/s, and a draining target moved at that rate (`docs/performance.md`);
    /// `weft group resync set --rate` raises it.
    pub rebuild_bytes_per_s: f64,
    /// Time until an unreachable target counts as lost, in minutes. weft: 30.
    pub rebuild_after_minutes: f64,
    /// Time until a drive is replaced by hand, in hours, where there is no spare capacity.
    pub replaced_after_hours: f64,
    /// Delivered relative to promised throughput of a file system whose throughput is sold.
    pub promised_share: f64,
    /// The same for its drives when credits are used up.
    pub promised_drive_baseline_share: f64,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            link_share: 0.9,
            core_bytes_per_s: Some(3.2e9),
            core_requests_per_s: Some(225e3),
            copy_work: 1.0,
            thread_bytes_per_s: Some(1.1e9),
            shared_read_share: 0.95,
            shared_write_share: 0.65,
            usable_share: 0.99,
            metadata_share: 0.01,
            rebuild_share: 0.2,
            rebuild_bytes_per_s: 268.4e6,
            rebuild_after_minutes: 30.0,
            replaced_after_hours: 72.0,
            promised_share: 1.0,
            promised_drive_baseline_share: 1.0,
        }
    }
}
