//! What a plan is made from.

use super::{Drive, Link, PlannedScheme, Provision};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Servers, drives, links, clients, pool.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// What it is called in reports.
    #[serde(default)]
    pub name: String,
    /// The pool that all targets are in.
    #[serde(default)]
    pub pool: Pool,
    /// Kinds of servers.
    #[serde(default)]
    pub server: Vec<Server>,
    /// The clients; without them they don't bind.
    pub clients: Option<Clients>,
    /// How near the system comes to its hardware.
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
    /// How files are kept.
    pub scheme: PlannedScheme,
    /// What is kept free for the content of lost targets, percent of each target.
    pub spare_percent: f64,
    /// Racks over which the servers are spread evenly; 0: each server is a failure domain of its
    /// own.
    pub racks: u32,
    /// How full targets are when one is lost, percent of what is usable.
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

/// How the drives of a target are put together below the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Raid {
    /// One after another, without redundancy; also for a single drive.
    #[default]
    #[serde(rename = "0")]
    Striped,
    /// Pairs with the same content.
    #[serde(rename = "10")]
    Mirrored,
}

impl Raid {
    /// Drives' bytes for each byte stored.
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
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// How many there are.
    pub count: u32,
    /// Drives for data in each.
    pub drives: u32,
    /// Kind of these.
    pub drive: String,
    /// Drives that make a target.
    #[serde(default = "one")]
    pub drives_per_target: u32,
    /// How they make it.
    #[serde(default)]
    pub raid: Raid,
    /// Network links of each.
    #[serde(default = "one")]
    pub links: u32,
    /// Kind of these.
    pub link: String,
    /// Cores that answer requests; without them they don't bind.
    pub cores: Option<u32>,
    /// Drives for metadata, in mirrored pairs.
    #[serde(default)]
    pub metadata_drives: u32,
    /// Kind of these; the same as for data unless said.
    pub metadata_drive: Option<String>,
    /// Height in a rack, units.
    #[serde(default = "one")]
    pub rack_units: u32,
}

fn one() -> u32 {
    1
}

impl Server {
    /// One server with one link of a kind and nothing else, to be filled.
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
    /// How many there are.
    pub count: u32,
    /// Network links of each.
    #[serde(default = "one")]
    pub links: u32,
    /// Kind of these.
    pub link: String,
    /// Programs on each that read or write one file each; without them they don't bind.
    pub threads: Option<u32>,
    /// Small requests that each has under way at a time; with them latencies are told.
    pub outstanding: Option<u32>,
}

/// How near a system comes to its hardware. The defaults are weft's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Part of a link's rate that payload reaches. The two published systems whose links bind reach
    /// 0.95 and 0.86.
    pub link_share: f64,
    /// Bytes a second that a core of a server moves between network and drive. Two processes of
    /// weft on one machine take 649 us of CPU for a MiB read, the reading program and the client
    /// included (`docs/performance.md`); half is counted as the server's.
    pub core_bytes_per_s: Option<f64>,
    /// Small requests a second that a core of a server answers. The same: 8.8 us for a read of 4
    /// KiB, half of it the server's.
    pub core_requests_per_s: Option<f64>,
    /// CPU that each further drive access of a small write costs, in small requests: 1 where it is
    /// a request to another service.
    pub copy_work: f64,
    /// Bytes a second of one program that reads or writes one file. weft: 1 job over TCP, write
    /// (`docs/performance.md`).
    pub thread_bytes_per_s: Option<f64>,
    /// Rate of reading one file from everywhere, over that of reading many. weft:
    /// `docs/performance.md`, N-1 over N-N.
    pub shared_read_share: f64,
    /// Rate of writing one file from everywhere, over that of writing many. weft: a file that
    /// grows.
    pub shared_write_share: f64,
    /// Part of a target that files can use: what the local file system keeps for itself is the
    /// rest.
    pub usable_share: f64,
    /// Capacity for metadata, over that for data.
    pub metadata_share: f64,
    /// Part of drives and links that making lost content again may use. weft gives it a fifth of
    /// the time.
    pub rebuild_share: f64,
    /// Most that is made again of one target, bytes a second. weft's default pace sends a member
    /// 256 MiB/s, and a target that was drained moved at that (`docs/performance.md`);
    /// `weft group resync set --rate` raises it.
    pub rebuild_bytes_per_s: f64,
    /// Time until a lost target counts as lost, minutes. weft: 30.
    pub rebuild_after_minutes: f64,
    /// Time until a drive is replaced by hand, hours, where there is no spare room.
    pub replaced_after_hours: f64,
    /// Delivered over promised throughput of a file system whose throughput is sold.
    pub promised_share: f64,
    /// The same for its drives when credits have run out.
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
