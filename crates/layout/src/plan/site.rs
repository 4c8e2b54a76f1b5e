//! A description with resolved names and checked numbers.

use super::{Clients, DRIVES, Description, Drive, LINKS, Link, Model, Pool, Server, invalid};
use std::collections::BTreeMap;
use types::Result;

const GB: f64 = 1e9;
const TB: f64 = 1e12;
/// Most servers, clients and drives of a kind: a larger number is more likely a typing error than a
/// purchase.
const MAX_COUNT: u32 = 1_000_000;

/// A kind of server with its hardware.
pub(super) struct ServerKind<'a> {
    pub server: &'a Server,
    pub drive: Drive,
    pub metadata_drive: Drive,
    /// Total rate of its links in each direction, bytes a second.
    pub links_bytes_per_s: f64,
}

impl ServerKind<'_> {
    /// Number of targets of one server.
    pub fn targets(&self) -> f64 {
        f64::from(self.server.drives / self.server.drives_per_target)
    }

    /// Capacity of a target before any scheme, in bytes.
    pub fn target_bytes(&self) -> f64 {
        self.drive.tb * TB * f64::from(self.server.drives_per_target) / self.server.raid.stored_per_byte()
    }

    /// Sequential read of a target's drives together, bytes a second: both drives of a mirrored
    /// pair serve reads.
    pub fn target_read(&self) -> f64 {
        self.drive.read_gb_s * GB * f64::from(self.server.drives_per_target)
    }

    /// Sequential write of a target, bytes a second.
    pub fn target_write(&self) -> f64 {
        self.drive.write_gb_s * GB * f64::from(self.server.drives_per_target)
            / self.server.raid.stored_per_byte()
    }
}

/// Rates of the parts of a server, without interference between them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ServerParts {
    /// Number of servers of the kind.
    pub count: u32,
    /// Number of targets of each.
    pub targets: u32,
    /// Capacity of a target in bytes.
    pub target_bytes: f64,
    /// Sequential read of a target, bytes a second.
    pub target_read: f64,
    /// Sequential write of a target, bytes a second.
    pub target_write: f64,
    /// Total payload rate of a server's links in each direction, bytes a second.
    pub links_bytes_per_s: f64,
    /// Bytes a second that its cores move; `None` if they are not a limit.
    pub cores_bytes_per_s: Option<f64>,
}

/// Returns the parts of each kind of server of a description, and the payload rate of a client's
/// links in bytes a second, if clients are described.
///
/// Errors: those of a plan.
pub fn server_parts(description: &Description) -> Result<(Vec<ServerParts>, Option<f64>)> {
    let site = site(description)?;
    let model = site.model;
    let kinds = site.kinds.iter().map(|kind| ServerParts {
        count: kind.server.count,
        targets: kind.targets() as u32,
        target_bytes: kind.target_bytes() * model.usable_share,
        target_read: kind.target_read(),
        target_write: kind.target_write(),
        links_bytes_per_s: kind.links_bytes_per_s * model.link_share,
        cores_bytes_per_s: kind
            .server
            .cores
            .zip(model.core_bytes_per_s)
            .map(|(cores, rate)| f64::from(cores) * rate),
    });
    Ok((kinds.collect(), site.clients.map(|(_, bytes_per_s)| bytes_per_s * model.link_share)))
}

/// Input of all formulas.
pub(super) struct Site<'a> {
    pub pool: &'a Pool,
    pub model: &'a Model,
    pub kinds: Vec<ServerKind<'a>>,
    pub clients: Option<(&'a Clients, f64)>,
}

impl Site<'_> {
    /// Number of servers with data.
    pub fn servers(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.server.count).sum()
    }

    /// Number of all targets.
    pub fn targets(&self) -> f64 {
        self.kinds.iter().map(|kind| f64::from(kind.server.count) * kind.targets()).sum()
    }

    /// Number of failure domains: racks or servers, of which no two members of a group share one.
    pub fn domains(&self) -> u32 {
        if self.pool.racks > 0 { self.pool.racks } else { self.servers() }
    }

    /// The sum of a quantity over all servers.
    pub fn sum(&self, of: impl Fn(&ServerKind) -> f64) -> f64 {
        self.kinds.iter().map(|kind| f64::from(kind.server.count) * of(kind)).sum()
    }
}

/// Resolves and checks a description.
pub(super) fn site(description: &Description) -> Result<Site<'_>> {
    check_model(&description.model)?;
    if description.server.is_empty() {
        return Err(invalid(
            "the description has no servers",
            "add a [[server]] with count, drives, drive and link",
        ));
    }
    let kinds =
        description.server.iter().map(|server| kind(description, server)).collect::<Result<Vec<_>>>()?;
    let clients = match &description.clients {
        None => None,
        Some(clients) => {
            check_count("clients: count", clients.count)?;
            check_count("clients: links", clients.links)?;
            let link = look_up("link", &clients.link, "clients", &description.link, LINKS)?;
            check_rate(&format!("link {}: gb_s", clients.link), link.gb_s)?;
            Some((clients, link.gb_s * GB * f64::from(clients.links)))
        }
    };
    let site = Site { pool: &description.pool, model: &description.model, kinds, clients };
    check_pool(&site)?;
    Ok(site)
}

fn kind<'a>(description: &'a Description, server: &'a Server) -> Result<ServerKind<'a>> {
    let name = if server.name.is_empty() { "server" } else { &server.name };
    let of = |what: &str| format!("{name}: {what}");
    check_count(&of("count"), server.count)?;
    check_count(&of("drives"), server.drives)?;
    check_count(&of("drives_per_target"), server.drives_per_target)?;
    check_count(&of("links"), server.links)?;
    if server.cores == Some(0) {
        return Err(invalid(
            of("cores is 0"),
            "give the number of cores that answer requests, or omit cores",
        ));
    }
    if !server.drives.is_multiple_of(server.drives_per_target) {
        let message =
            format!("{} drives don't make whole targets of {}", server.drives, server.drives_per_target);
        return Err(invalid(of(&message), "change drives or drives_per_target"));
    }
    if server.raid == super::Raid::Mirrored && !server.drives_per_target.is_multiple_of(2) {
        let message = format!("{} drives per target can't be paired", server.drives_per_target);
        return Err(invalid(of(&message), "raid = \"10\" needs an even drives_per_target"));
    }
    if !server.metadata_drives.is_multiple_of(2) {
        let message = format!("{} metadata drives can't be paired", server.metadata_drives);
        return Err(invalid(of(&message), "metadata is stored on mirrored pairs: use an even number"));
    }
    let drive = drive(description, &server.drive, name)?;
    let metadata_drive = match &server.metadata_drive {
        Some(other) => self::drive(description, other, name)?,
        None => drive,
    };
    let link: Link = look_up("link", &server.link, name, &description.link, LINKS)?;
    check_rate(&format!("link {}: gb_s", server.link), link.gb_s)?;
    Ok(ServerKind {
        server,
        drive,
        metadata_drive,
        links_bytes_per_s: link.gb_s * GB * f64::from(server.links),
    })
}

fn drive(description: &Description, name: &str, server: &str) -> Result<Drive> {
    let drive: Drive = look_up("drive", name, server, &description.drive, DRIVES)?;
    let of = |what: &str| format!("drive {name}: {what}");
    check_rate(&of("tb"), drive.tb)?;
    check_rate(&of("read_gb_s"), drive.read_gb_s)?;
    check_rate(&of("write_gb_s"), drive.write_gb_s)?;
    for (what, iops) in [("read_iops", drive.read_iops), ("write_iops", drive.write_iops)] {
        iops.map_or(Ok(()), |iops| check_rate(&of(what), iops))?;
    }
    if !(0.0..1.0).contains(&drive.afr) || !(0.0..1.0).contains(&drive.unreadable_per_bit) {
        let hint = "afr and unreadable_per_bit are parts from 0 to below 1: 0.01 for 1 % a year";
        return Err(invalid(of("afr or unreadable_per_bit is not a probability"), hint));
    }
    Ok(drive)
}

fn look_up<T: Copy>(
    what: &str,
    name: &str,
    of: &str,
    own: &BTreeMap<String, T>,
    presets: &[(&str, T)],
) -> Result<T> {
    let preset = || presets.iter().find(|(preset, _)| *preset == name).map(|(_, kind)| *kind);
    own.get(name).copied().or_else(preset).ok_or_else(|| {
        let known: Vec<&str> =
            own.keys().map(String::as_str).chain(presets.iter().map(|(name, _)| *name)).collect();
        let message = format!("{of}: unknown kind of {what} {name:?}");
        invalid(message, format!("take one of {}, or describe it in [{what}.{name}]", known.join(", ")))
    })
}

fn check_count(what: &str, count: u32) -> Result<()> {
    match count {
        0 => Err(invalid(format!("{what} is 0"), "a plan needs at least one")),
        1..=MAX_COUNT => Ok(()),
        _ => Err(invalid(format!("{what} is {count}"), format!("at most {MAX_COUNT} are planned"))),
    }
}

fn check_rate(what: &str, rate: f64) -> Result<()> {
    // The bounds keep sums and products of all of them finite.
    match rate > 0.0 && rate <= 1e15 {
        true => Ok(()),
        false => Err(invalid(format!("{what} is {rate}"), "it must be a positive number")),
    }
}

fn check_model(model: &Model) -> Result<()> {
    let shares = [
        ("link_share", model.link_share),
        ("shared_read_share", model.shared_read_share),
        ("shared_write_share", model.shared_write_share),
        ("usable_share", model.usable_share),
        ("metadata_share", model.metadata_share),
        ("rebuild_share", model.rebuild_share),
    ];
    if let Some((name, share)) = shares.into_iter().find(|(_, share)| !(*share > 0.0 && *share <= 1.0)) {
        return Err(invalid(format!("model: {name} is {share}"), "it is a part, more than 0 and at most 1"));
    }
    let numbers = [
        ("core_bytes_per_s", model.core_bytes_per_s.unwrap_or(1.0)),
        ("core_requests_per_s", model.core_requests_per_s.unwrap_or(1.0)),
        ("thread_bytes_per_s", model.thread_bytes_per_s.unwrap_or(1.0)),
        ("rebuild_bytes_per_s", model.rebuild_bytes_per_s),
        ("replaced_after_hours", model.replaced_after_hours),
        ("promised_share", model.promised_share),
        ("promised_drive_baseline_share", model.promised_drive_baseline_share),
    ];
    numbers.into_iter().try_for_each(|(name, number)| check_rate(&format!("model: {name}"), number))?;
    let from_zero = [("copy_work", model.copy_work), ("rebuild_after_minutes", model.rebuild_after_minutes)];
    match from_zero.into_iter().find(|(_, number)| !(0.0..=1e9).contains(number)) {
        Some((name, number)) => Err(invalid(format!("model: {name} is {number}"), "it must be 0 or more")),
        None => Ok(()),
    }
}

fn check_pool(site: &Site) -> Result<()> {
    let Pool { scheme, spare_percent, racks, full_percent } = site.pool;
    if !(0.0..100.0).contains(spare_percent) {
        return Err(invalid(format!("pool: spare_percent is {spare_percent}"), "write 0 to below 100"));
    }
    if !(0.0..=100.0).contains(full_percent) {
        return Err(invalid(format!("pool: full_percent is {full_percent}"), "write 0 to 100"));
    }
    if *racks > site.servers() {
        let message = format!("pool: {racks} racks for {} servers", site.servers());
        return Err(invalid(message, "each rack needs a server: lower racks or add servers"));
    }
    let (members, domains) = (u32::from(scheme.members()), site.domains());
    if members > domains {
        let what = if *racks > 0 { "racks" } else { "servers" };
        let message =
            format!("pool: a group of {scheme} has {members} members, and there are {domains} {what}");
        let hint =
            format!("no two members share a failure domain: plan {members} {what} or a narrower scheme");
        return Err(invalid(message, hint));
    }
    Ok(())
}
