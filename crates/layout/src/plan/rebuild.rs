//! Time until a lost target's content is rebuilt.

use super::site::{ServerKind, Site};
use serde::Serialize;

const MINUTE_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;

/// Where lost content is rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildPlace {
    /// In the spare capacity of all other targets: all read and all write.
    Spare,
    /// On a replacement drive: it alone writes.
    Replacement,
}

/// The rebuild of a target.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rebuild {
    /// Destination.
    pub place: RebuildPlace,
    /// Content of the largest target in bytes.
    pub bytes: f64,
    /// From the loss to the end of the rebuild, in seconds.
    pub seconds: f64,
    /// Of these until the rebuild begins, in seconds.
    pub waits_seconds: f64,
    /// Bottleneck: `pace` is the model's limit for one target.
    pub binds: &'static str,
}

/// Declustered if there is spare capacity (Holland and Gibson: "Parity Declustering for Continuous
/// Operation in Redundant Disk Arrays", ASPLOS 1992): the other targets share reading and writing,
/// so the time falls with their number. `None` for a scheme without redundancy.
pub(super) fn rebuild(site: &Site) -> Option<Rebuild> {
    let (pool, model) = (site.pool, site.model);
    if pool.scheme.tolerates() == 0 {
        return None;
    }
    let largest = site.kinds.iter().max_by(|a, b| a.target_bytes().total_cmp(&b.target_bytes()))?;
    let used_share = model.usable_share * (1.0 - pool.spare_percent / 100.0) * pool.full_percent / 100.0;
    let bytes = largest.target_bytes() * used_share;
    let place = if has_space(site, bytes) { RebuildPlace::Spare } else { RebuildPlace::Replacement };
    let waits_seconds = match place {
        RebuildPlace::Spare => model.rebuild_after_minutes * MINUTE_S,
        RebuildPlace::Replacement => model.replaced_after_hours * HOUR_S,
    };
    let works = match place {
        RebuildPlace::Spare => declustered_seconds(site, bytes),
        RebuildPlace::Replacement => replaced_seconds(site, largest, bytes),
    };
    let rate_limited = (bytes / model.rebuild_bytes_per_s, "pace");
    let (works, binds) =
        works.into_iter().chain([rate_limited]).fold((0.0, "pace"), |a, b| if b.0 > a.0 { b } else { a });
    Some(Rebuild { place, bytes, seconds: waits_seconds + works, waits_seconds, binds })
}

/// Whether other targets can take the content: there is enough spare capacity, and a failure domain
/// that the group doesn't use yet or that has another target.
fn has_space(site: &Site, bytes: f64) -> bool {
    let stored = site.sum(|kind| kind.targets() * kind.target_bytes());
    let largest = site.kinds.iter().map(ServerKind::target_bytes).fold(0.0, f64::max);
    let spare = (stored - largest) * site.model.usable_share * site.pool.spare_percent / 100.0;
    let elsewhere = site.domains() > u32::from(site.pool.scheme.members());
    let beside = site.targets() > f64::from(site.domains());
    spare >= bytes && (elsewhere || beside)
}

/// All other targets read and write concurrently, each with the rebuild's share of its time.
fn declustered_seconds(site: &Site, bytes: f64) -> [(f64, &'static str); 2] {
    let others = (site.targets() - 1.0) / site.targets();
    let share = site.model.rebuild_share * others;
    let read = bytes * site.pool.scheme.read_per_lost_byte();
    let drives = read / (site.sum(|kind| kind.targets() * kind.target_read()) * share)
        + bytes / (site.sum(|kind| kind.targets() * kind.target_write()) * share);
    let links = read / (site.sum(|kind| kind.links_bytes_per_s) * site.model.link_share * share);
    [(drives, "drives"), (links, "server links")]
}

/// The replacement drives write, undisturbed by clients, over the links of their server, of which
/// the rebuild has its share.
fn replaced_seconds(site: &Site, kind: &ServerKind, bytes: f64) -> [(f64, &'static str); 2] {
    let receive_rate = kind.links_bytes_per_s * site.model.link_share * site.model.rebuild_share;
    let read = bytes * site.pool.scheme.read_per_lost_byte();
    [(bytes / kind.target_write(), "drives"), (read / receive_rate, "server links")]
}

#[cfg(test)]
mod tests {
    use crate::plan::{Description, Model, Pool, RebuildPlace, Server, plan};

    fn of(servers: u32, drives: u32, spare_percent: f64, rate: f64) -> super::Rebuild {
        let server =
            Server { count: servers, drives, drive: "nvme-gen4-7.68tb".into(), ..Server::of("100gbe") };
        let pool = Pool { spare_percent, ..Pool::of("mirror:2".parse().unwrap()) };
        let model = Model { rebuild_bytes_per_s: rate, rebuild_after_minutes: 0.0, ..Model::default() };
        let description = Description { pool, server: vec![server], model, ..Description::default() };
        plan(&description).unwrap().rebuild.unwrap()
    }

    #[test]
    fn more_servers_rebuild_faster_until_the_pace_binds() {
        let (few, many) = (of(6, 12, 10.0, 1e15), of(60, 12, 10.0, 1e15));
        assert_eq!((few.place, few.binds), (RebuildPlace::Spare, "server links"));
        // 71 and 719 other targets share the work.
        assert!((few.seconds / many.seconds / (719.0 / 71.0) - 1.0).abs() < 1e-9);
        let rate_limited = of(60, 12, 10.0, 1e9);
        assert_eq!((rate_limited.binds, rate_limited.seconds), ("pace", rate_limited.bytes / 1e9));
    }

    #[test]
    fn without_spare_a_drive_is_replaced_first() {
        assert_eq!(of(6, 12, 0.0, 1e15).place, RebuildPlace::Replacement);
        // Two servers of one target each: no other target can take the replica.
        let pair = of(2, 1, 90.0, 1e15);
        assert_eq!(pair.place, RebuildPlace::Replacement);
        assert_eq!(pair.waits_seconds, 72.0 * 3600.0);
        // A second target in the server of the lost one takes it.
        assert_eq!(of(2, 2, 90.0, 1e15).place, RebuildPlace::Spare);
    }
}
