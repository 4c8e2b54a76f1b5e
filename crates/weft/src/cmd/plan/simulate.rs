//! Simulates a plan: real groups, placement and striping on modelled drives, links and cores.

use super::rows::number;
use crate::output::{Align, table};
use crate::progress::{Done, Progress};
use layout::plan::{Description, PlannedScheme, ServerParts, plan, server_parts};
use report::{Axis, Block, Figure, Point, Scale, Series, Table};
use scale::{Hardware, Load, LoadResult, Rebuild, RebuildResult, Resource, SimulatedCluster};
use serde::Serialize;
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;
use types::{Errno, Error, Result, Scheme};

/// Servers of the largest simulated cluster.
pub const MAX_SERVERS: u32 = 10_000;
/// Servers of the smallest one.
const MIN_SERVERS: u32 = 3;
/// Factor between the sizes of clusters.
const STEP: u32 = 3;
/// Applications per client: enough to keep a request in flight everywhere.
const APPLICATIONS: u32 = 8;
/// Bytes that a group rebuilds in a simulation: only the rate is reported, from which the time for
/// a full target follows.
const GROUP_BYTES: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// Results of the simulations.
#[derive(Serialize)]
pub struct Simulated {
    /// The described servers, with increasing numbers of clients.
    clients: Vec<AtClients>,
    /// As many clients as servers, with increasing numbers of both.
    servers: Vec<AtServers>,
    /// What was left out, and why, and where the simulation differs from a real cluster.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct AtClients {
    clients: u32,
    read_bytes_per_s: f64,
    read_busiest: &'static str,
    write_bytes_per_s: f64,
    write_busiest: &'static str,
}

#[derive(Serialize)]
struct AtServers {
    servers: u32,
    read_bytes_per_s: f64,
    write_bytes_per_s: f64,
    /// Rates by the formulas.
    planned_read_bytes_per_s: f64,
    planned_write_bytes_per_s: f64,
    /// Ratio of the busiest target's work to the mean target's, for reads.
    imbalance: f64,
    /// With replicas: read rate without one of the servers, as a share of that with it.
    degraded_share: Option<f64>,
    rebuild: Option<AtRebuild>,
}

#[derive(Serialize)]
struct AtRebuild {
    /// Rate of all targets that replace those of a lost server, in bytes per second, without
    /// throttle and without clients.
    free_bytes_per_s: f64,
    /// The same at the model's pace, with concurrently reading clients.
    paced_bytes_per_s: f64,
    /// Share of their read rate without the server that these clients lose by the rebuild.
    foreground_loss: f64,
    /// Number of targets that receive data.
    receivers: usize,
}

/// Simulates a description of one kind of server, and clusters from 3 of them to `most`.
///
/// Errors: several kinds of servers, a scheme that isn't implemented yet, and the errors of a plan.
pub fn simulate(description: &Description, most: u32) -> Result<Simulated> {
    let (kinds, client_link) = server_parts(description)?;
    let [kind] = kinds[..] else {
        return Err(refused(
            "the description has several kinds of servers",
            "simulate each of them separately",
        ));
    };
    let scheme = match description.pool.scheme {
        PlannedScheme::Single => Scheme::Single,
        PlannedScheme::Mirror(copies) => Scheme::Mirror(copies as u8),
        other => {
            return Err(refused(&format!("files of scheme {other} can't be simulated"), "--scheme mirror:2"));
        }
    };
    let site = Site { description, kind, scheme, client_link: client_link.unwrap_or(kind.links_bytes_per_s) };
    let mut notes = Vec::new();
    let cluster = site.simulated_cluster(kind.count)?;
    let described = description.clients.as_ref().map_or(kind.count, |clients| clients.count);
    let mut clients = Vec::new();
    for count in std::iter::successors(Some(1u32), |count| count.checked_mul(2))
        .take_while(|c| *c < 2 * described.max(kind.count))
    {
        let (read, write) = (run(&cluster, load(count, false))?, run(&cluster, load(count, true))?);
        clients.push(AtClients {
            clients: count,
            read_bytes_per_s: read.bytes_per_s,
            read_busiest: busiest(&read),
            write_bytes_per_s: write.bytes_per_s,
            write_busiest: busiest(&write),
        });
    }
    let mut servers = Vec::new();
    let sizes = std::iter::successors(Some(MIN_SERVERS), |count| Some(count * STEP))
        .take_while(|count| *count < most);
    let sizes: Vec<u32> = sizes.chain([most]).collect();
    let progress = Progress::start("simulating");
    for (done, &count) in sizes.iter().enumerate() {
        progress.update(
            format!("simulating {count} servers"),
            Done::Things(done as u64, Some(sizes.len() as u64)),
        );
        match site.at(count) {
            Ok((found, note)) => {
                servers.push(found);
                notes.extend(note);
            }
            Err(why) => notes.push(format!("not simulated: {count} servers: {}", why.message)),
        }
    }
    Ok(Simulated { clients, servers, notes })
}

fn refused(what: &str, remedy: &str) -> Error {
    Error::new(Errno::EINVAL, what.to_string()).hint(remedy.to_string())
}

fn load(clients: u32, writes: bool) -> Load {
    Load {
        clients,
        applications: APPLICATIONS,
        // Each application uses its own core.
        connections: APPLICATIONS,
        record_bytes: MIB,
        chunk_bytes: MIB as u32,
        stripe_count: 4,
        writes,
        seed: 1,
    }
}

fn run(cluster: &SimulatedCluster, load: Load) -> Result<LoadResult> {
    scale::run(cluster, load).map_err(|why| refused(&why.0, "describe a smaller cluster"))
}

fn busiest(found: &LoadResult) -> &'static str {
    match found.busy.first().map(|(resource, _)| *resource) {
        Some(Resource::Targets) => "drives",
        Some(Resource::ServerLinks) => "server links",
        Some(Resource::ServerCores) => "server cores",
        Some(Resource::ClientLinks) => "client links",
        None => "",
    }
}

struct Site<'a> {
    description: &'a Description,
    kind: ServerParts,
    scheme: Scheme,
    client_link: f64,
}

impl Site<'_> {
    fn simulated_cluster(&self, servers: u32) -> Result<SimulatedCluster> {
        let kind = &self.kind;
        let hardware = Hardware {
            servers,
            targets: kind.targets,
            racks: self.description.pool.racks.min(servers),
            target_read: kind.target_read,
            target_write: kind.target_write,
            server_link: kind.links_bytes_per_s,
            server_cores: kind.cores_bytes_per_s.unwrap_or(f64::INFINITY),
            client_link: self.client_link,
            scheme: self.scheme,
        };
        SimulatedCluster::new(hardware).map_err(|why| refused(&why.0, "describe fewer targets"))
    }

    /// Simulates a cluster of this many servers. Also returns a note where it differs from a real
    /// one.
    fn at(&self, servers: u32) -> Result<(AtServers, Option<String>)> {
        let cluster = self.simulated_cluster(servers)?;
        let mut other = self.description.clone();
        other.clients = None;
        if let Some(server) = other.server.last_mut() {
            server.count = servers;
        }
        let planned = plan(&other)?;
        let mirrored = self.scheme.spans_targets();
        let lost = mirrored.then(|| cluster.without(0));
        let (reads, writes) = (load(servers, false), load(servers, true));
        let pace = self.description.model.rebuild_bytes_per_s;
        // The runs are independent, and take long for thousands of servers.
        let (read, write, degraded, free, paced) = std::thread::scope(|scope| {
            let read = scope.spawn(|| run(&cluster, reads));
            let write = scope.spawn(|| run(&cluster, writes));
            let degraded = lost.as_ref().map(|lost| scope.spawn(|| run(lost, reads)));
            let paced = mirrored.then(|| scope.spawn(|| rebuilt(&cluster, pace, Some(reads))));
            let free = mirrored.then(|| rebuilt(&cluster, f64::INFINITY, None));
            (joined(read), joined(write), degraded.map(joined), free, paced.map(joined))
        });
        let (read, write, degraded) = (read?, write?, degraded.transpose()?);
        let rebuild = match (free.transpose()?, paced.transpose()?, &degraded) {
            // Otherwise no target can replace a member.
            (Some(free), Some(paced), Some(degraded)) if free.bytes > 0 => Some(AtRebuild {
                free_bytes_per_s: free.bytes as f64 / free.seconds,
                paced_bytes_per_s: paced.bytes as f64 / paced.seconds,
                foreground_loss: 1.0 - paced.foreground_bytes_per_s / degraded.bytes_per_s,
                receivers: free.receivers,
            }),
            _ => None,
        };
        let found = AtServers {
            servers,
            read_bytes_per_s: read.bytes_per_s,
            write_bytes_per_s: write.bytes_per_s,
            planned_read_bytes_per_s: planned.read.per_s,
            planned_write_bytes_per_s: planned.write.per_s,
            imbalance: read.imbalance,
            degraded_share: degraded.map(|degraded| degraded.bytes_per_s / read.bytes_per_s),
            rebuild,
        };
        Ok((found, map_limit_note(&cluster)))
    }
}

/// Returns a note for a cluster with more groups than a cluster map can hold.
fn map_limit_note(cluster: &SimulatedCluster) -> Option<String> {
    let (servers, groups, held) = (cluster.hardware.servers, cluster.map.groups.len(), layout::MAX_MIRRORED);
    let exceeds_map = cluster.hardware.scheme.spans_targets() && groups > held;
    exceeds_map.then(|| {
        format!("{servers} servers are simulated as if a map held {groups} mirrored groups; it holds {held}")
    })
}

fn rebuilt(cluster: &SimulatedCluster, pace: f64, load: Option<Load>) -> Result<RebuildResult> {
    let how = Rebuild {
        lost: 0,
        group_bytes: GROUP_BYTES,
        record_bytes: MIB,
        pieces: 8,
        members: 2,
        max_bytes_per_s: pace,
    };
    scale::rebuild(cluster, how, load).map_err(|why| refused(&why.0, "describe a larger cluster"))
}

/// Returns the result of a thread, and propagates its panic.
fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

const GB: f64 = 1e9;

impl Simulated {
    /// Returns the results as tables.
    pub fn text(&self) -> String {
        let clients = self.clients.iter().map(|at| self.client_cells(at));
        let heading = [
            ("clients", Align::Right),
            ("read, GB/s", Align::Right),
            ("busiest", Align::Left),
            ("write, GB/s", Align::Right),
            ("busiest", Align::Left),
        ];
        let first = table(heading, &clients.collect::<Vec<_>>());
        let heading = [
            ("servers", Align::Right),
            ("read, GB/s", Align::Right),
            ("planned", Align::Right),
            ("write, GB/s", Align::Right),
            ("planned", Align::Right),
            ("busiest target", Align::Right),
            ("read without one", Align::Right),
            ("rebuild, GB/s", Align::Right),
            ("paced", Align::Right),
            ("applications lose", Align::Right),
        ];
        let second = table(heading, &self.servers.iter().map(server_cells).collect::<Vec<_>>());
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        format!(
            "\nsimulated, {APPLICATIONS} applications per client:\n{first}\nas many clients as servers:\n{second}{notes}"
        )
    }

    fn client_cells(&self, at: &AtClients) -> [String; 5] {
        [
            at.clients.to_string(),
            number(at.read_bytes_per_s / GB),
            at.read_busiest.into(),
            number(at.write_bytes_per_s / GB),
            at.write_busiest.into(),
        ]
    }

    /// Returns the results as figures, each with its table.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = vec![Block::Figure(self.figure(
            "Throughput against clients",
            "The described servers. It rises with the clients until the busiest resource has no time left.",
            ("clients", "GB/s"),
            vec![
                points("read", self.clients.iter().map(|at| (at.clients, at.read_bytes_per_s / GB))),
                points("write", self.clients.iter().map(|at| (at.clients, at.write_bytes_per_s / GB))),
            ],
        ))];
        let columns = ["clients", "read, GB/s", "busiest", "write, GB/s", "busiest"];
        let rows = self.clients.iter().map(|at| self.client_cells(at));
        blocks.push(Block::Table(rows.fold(Table::of(&columns), |table, cells| table.row(cells))));
        blocks.push(Block::Figure(self.figure(
            "Throughput against servers",
            "As many clients as servers. What the formulas allow is the limit; the distance is what queues and uneven placement cost.",
            ("servers", "GB/s"),
            vec![
                points("read", self.servers.iter().map(|at| (at.servers, at.read_bytes_per_s / GB))),
                points("write", self.servers.iter().map(|at| (at.servers, at.write_bytes_per_s / GB))),
                limit("read, formula", self.servers.iter().map(|at| (at.servers, at.planned_read_bytes_per_s / GB))),
                limit("write, formula", self.servers.iter().map(|at| (at.servers, at.planned_write_bytes_per_s / GB))),
            ],
        )));
        let rebuilt = || self.servers.iter().filter_map(|at| Some((at.servers, at.rebuild.as_ref()?)));
        if rebuilt().next().is_some() {
            blocks.push(Block::Figure(self.figure(
                "Rebuild after the loss of a server",
                "Total rate to the replacement targets: alone without a throttle, and at the default rate beside reading clients.",
                ("servers", "GB/s"),
                vec![
                    points("alone", rebuilt().map(|(servers, at)| (servers, at.free_bytes_per_s / GB))),
                    points("paced, beside clients", rebuilt().map(|(servers, at)| (servers, at.paced_bytes_per_s / GB))),
                ],
            )));
        }
        let columns = [
            "servers",
            "read, GB/s",
            "planned",
            "write, GB/s",
            "planned",
            "busiest target",
            "read without one",
            "rebuild, GB/s",
            "paced",
            "applications lose",
        ];
        blocks.push(Block::Table(
            self.servers.iter().map(server_cells).fold(Table::of(&columns), |table, cells| table.row(cells)),
        ));
        blocks.extend(self.notes.iter().map(|note| Block::Text(format!("Note: {note}."))));
        blocks
    }

    fn figure(&self, title: &str, caption: &str, (x, y): (&str, &str), series: Vec<Series>) -> Figure {
        Figure {
            title: title.into(),
            caption: caption.into(),
            x: Axis { name: x.into(), scale: Scale::Log2 },
            y: Axis { name: y.into(), scale: Scale::Log10 },
            series,
        }
    }
}

fn points(name: &str, of: impl Iterator<Item = (u32, f64)>) -> Series {
    let points = of.map(|(x, y)| Point { x: f64::from(x), y, spread: None }).collect();
    Series { name: name.into(), points, is_limit: false }
}

fn limit(name: &str, of: impl Iterator<Item = (u32, f64)>) -> Series {
    Series { is_limit: true, ..points(name, of) }
}

fn server_cells(at: &AtServers) -> [String; 10] {
    // Avoids "-0".
    let percent = |share: f64| format!("{:.0} %", (100.0 * share).round() + 0.0);
    let rebuild = |of: &dyn Fn(&AtRebuild) -> String| at.rebuild.as_ref().map_or("-".into(), of);
    [
        at.servers.to_string(),
        number(at.read_bytes_per_s / GB),
        number(at.planned_read_bytes_per_s / GB),
        number(at.write_bytes_per_s / GB),
        number(at.planned_write_bytes_per_s / GB),
        format!("{:.2} x mean", at.imbalance),
        at.degraded_share.map_or("-".into(), percent),
        rebuild(&|found| number(found.free_bytes_per_s / GB)),
        rebuild(&|found| number(found.paced_bytes_per_s / GB)),
        rebuild(&|found| percent(found.foreground_loss)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::plan::{Pool, Server};

    fn description(scheme: &str) -> Description {
        let server = Server { count: 6, drives: 4, drive: "nvme-gen4-7.68tb".into(), ..Server::of("100gbe") };
        Description {
            pool: Pool::of(scheme.parse().unwrap()),
            server: vec![server],
            ..Description::default()
        }
    }

    #[test]
    fn a_description_is_run_at_all_sizes() {
        let found = simulate(&description("mirror:2"), 27).unwrap();
        assert_eq!(found.servers.iter().map(|at| at.servers).collect::<Vec<_>>(), [3, 9, 27]);
        for at in &found.servers {
            assert!(at.read_bytes_per_s > 0.5 * at.planned_read_bytes_per_s, "{}", found.text());
            assert!(at.read_bytes_per_s < 1.05 * at.planned_read_bytes_per_s, "{}", found.text());
            assert!(at.imbalance < 2.0 && at.rebuild.is_some());
        }
        assert!(found.clients[0].read_bytes_per_s < found.clients[2].read_bytes_per_s);
        assert!(found.text().contains("GB/s") && !found.blocks().is_empty());
        let single = simulate(&description("single"), 9).unwrap();
        assert!(single.servers.iter().all(|at| at.rebuild.is_none() && at.degraded_share.is_none()));
    }

    #[test]
    fn more_groups_than_a_map_holds_are_told() {
        let description = description("mirror:3");
        let (kinds, _) = server_parts(&description).unwrap();
        let kind = ServerParts { targets: 1, ..kinds[0] };
        let site =
            Site { description: &description, kind, scheme: Scheme::Mirror(3), client_link: 100.0 * GB };
        let note = map_limit_note(&site.simulated_cluster(5_000).unwrap());
        assert!(note.unwrap().contains("1667 mirrored groups; it holds 1536"));
        assert_eq!(map_limit_note(&site.simulated_cluster(300).unwrap()), None);
    }

    #[test]
    fn what_cannot_be_simulated_is_said() {
        let refused = |description: &Description| simulate(description, 9).err().unwrap().message;
        assert!(refused(&description("ec:4+2")).contains("ec:4+2"));
        let mut two = description("single");
        two.server.push(two.server[0].clone());
        assert!(refused(&two).contains("several kinds"));
        let (kinds, _) = server_parts(&description("mirror:2")).unwrap();
        let site = Site {
            description: &description("mirror:2"),
            kind: kinds[0],
            scheme: Scheme::Mirror(2),
            client_link: GB,
        };
        assert!(site.at(10_000).map(drop).unwrap_err().message.contains("40000 targets"));
    }
}
