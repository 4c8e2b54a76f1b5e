//! Properties that the model must have, whatever the numbers.

#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use proptest::prelude::*;
use scale::{Hardware, Load, LoadResult, Rebuild, Resource, SimulatedCluster, rebuild, run};
use types::Scheme;

const GB: f64 = 1e9;
const NONE: f64 = f64::INFINITY;

fn hardware(servers: u32, scheme: Scheme) -> Hardware {
    Hardware {
        servers,
        targets: 2,
        racks: 0,
        target_read: 3.0 * GB,
        target_write: 2.0 * GB,
        server_link: 10.0 * GB,
        server_cores: NONE,
        client_link: 10.0 * GB,
        scheme,
    }
}

fn load(clients: u32, writes: bool) -> Load {
    Load {
        clients,
        applications: 8,
        connections: 8,
        record_bytes: 1 << 20,
        chunk_bytes: 1 << 20,
        stripe_count: 4,
        writes,
        seed: 1,
    }
}

fn measured(hardware: Hardware, load: Load) -> LoadResult {
    run(&SimulatedCluster::new(hardware).unwrap(), load).unwrap()
}

fn how(lost: u32) -> Rebuild {
    Rebuild {
        lost,
        group_bytes: 64 << 20,
        record_bytes: 1 << 20,
        pieces: 8,
        members: 2,
        max_bytes_per_s: NONE,
    }
}

#[test]
fn a_lone_program_waits_for_each_station_in_turn() {
    let found = measured(hardware(4, Scheme::Single), Load { applications: 1, ..load(1, false) });
    // The second link forwards bytes while they arrive, so the two links count once.
    let expected = 1.0 / (1.0 / 3.0 + 1.0 / 10.0);
    assert!((found.bytes_per_s / GB / expected - 1.0).abs() < 1e-9, "{found:?}");
    let found = measured(hardware(4, Scheme::Mirror(2)), Load { applications: 1, ..load(1, true) });
    // The other replica takes longer: out of the primary's server and into another one.
    let expected = 1.0 / (1.0 / 10.0 + 1.0 / 10.0 + 1.0 / 2.0);
    assert!((found.bytes_per_s / GB / expected - 1.0).abs() < 1e-9, "{found:?}");
}

#[test]
fn with_many_clients_the_scarcest_resource_is_busy() {
    let drives = measured(hardware(6, Scheme::Single), load(40, false));
    assert_eq!(drives.busy[0].0, Resource::Targets);
    assert!(drives.bytes_per_s > 0.75 * 36.0 * GB && drives.bytes_per_s <= 36.0 * GB * 1.05, "{drives:?}");
    let links = measured(Hardware { server_link: 1.0 * GB, ..hardware(6, Scheme::Single) }, load(40, false));
    assert_eq!(links.busy[0].0, Resource::ServerLinks);
    assert!(links.bytes_per_s > 0.75 * 6.0 * GB && links.bytes_per_s <= 6.0 * GB * 1.05, "{links:?}");
    let cores =
        measured(Hardware { server_cores: 1.0 * GB, ..hardware(6, Scheme::Mirror(2)) }, load(40, true));
    assert_eq!(cores.busy[0].0, Resource::ServerCores);
    assert!(cores.bytes_per_s > 0.75 * 3.0 * GB && cores.bytes_per_s <= 3.0 * GB * 1.05, "{cores:?}");
    let clients = measured(Hardware { client_link: 0.1 * GB, ..hardware(6, Scheme::Single) }, load(4, false));
    assert_eq!(clients.busy[0].0, Resource::ClientLinks);
    assert!((clients.bytes_per_s / (0.4 * GB) - 1.0).abs() < 0.05, "{clients:?}");
}

#[test]
fn more_clients_give_more_until_a_plateau() {
    let rates: Vec<f64> = [1, 2, 4, 8, 16, 32, 64]
        .map(|clients| measured(hardware(8, Scheme::Mirror(2)), load(clients, false)).bytes_per_s)
        .into();
    assert!(rates[1] > 1.5 * rates[0] && rates[2] > 1.5 * rates[1], "{rates:?}");
    assert!(rates[6] < 1.1 * rates[5], "{rates:?}");
    assert!(rates.windows(2).all(|pair| pair[1] > 0.97 * pair[0]), "{rates:?}");
}

#[test]
fn a_lost_server_costs_its_part_of_mirrored_reads() {
    let cluster = SimulatedCluster::new(hardware(6, Scheme::Mirror(2))).unwrap();
    let whole = run(&cluster, load(48, false)).unwrap();
    let degraded = run(&cluster.without(2), load(48, false)).unwrap();
    let share = degraded.bytes_per_s / whole.bytes_per_s;
    assert!((0.6..0.95).contains(&share), "{share}");
}

#[test]
fn degraded_groups_are_written_to_the_remaining_replica() {
    let slow = Hardware { server_link: 1.0 * GB, ..hardware(3, Scheme::Mirror(2)) };
    let cluster = SimulatedCluster::new(slow).unwrap();
    let (whole, degraded) =
        (run(&cluster, load(12, true)).unwrap(), run(&cluster.without(0), load(12, true)).unwrap());
    // Three links for two replicas, then two links for one replica and two thirds of the other: not
    // as if all files had two replicas on two servers.
    assert!(degraded.bytes_per_s > 1.1 * GB, "{whole:?} {degraded:?}");
}

#[test]
fn larger_clusters_rebuild_faster_and_everything_gets_a_place() {
    let rebuilt = |servers| {
        rebuild(&SimulatedCluster::new(hardware(servers, Scheme::Mirror(2))).unwrap(), how(1), None).unwrap()
    };
    let (few, many) = (rebuilt(4), rebuilt(24));
    assert_eq!((few.unplaced, many.unplaced), (0, 0));
    assert!(many.receivers > few.receivers, "{few:?} {many:?}");
    let rate = |found: &scale::RebuildResult| found.bytes as f64 / found.seconds;
    assert!(rate(&many) > 2.0 * rate(&few), "{few:?} {many:?}");
    assert_eq!(few.foreground_bytes_per_s, 0.0);
}

#[test]
fn a_pace_slows_a_rebuild_and_spares_programs() {
    let cluster = SimulatedCluster::new(hardware(6, Scheme::Mirror(2))).unwrap();
    let at =
        |pace| rebuild(&cluster, Rebuild { max_bytes_per_s: pace, ..how(0) }, Some(load(24, false))).unwrap();
    let (free, paced) = (at(NONE), at(0.05 * GB));
    assert!(paced.seconds > 2.0 * free.seconds, "{free:?} {paced:?}");
    assert!(paced.foreground_bytes_per_s > free.foreground_bytes_per_s, "{free:?} {paced:?}");
    let degraded = run(&cluster.without(0), load(24, false)).unwrap().bytes_per_s;
    assert!(free.foreground_bytes_per_s < degraded, "{free:?} {degraded}");
}

#[test]
fn beyond_the_map_limit_each_target_is_in_one_group() {
    let cluster = SimulatedCluster::new(hardware(2_000, Scheme::Mirror(2))).unwrap();
    let mut members: Vec<u32> =
        cluster.map.groups.iter().flat_map(|group| &group.members).map(|member| member.0).collect();
    members.sort_unstable();
    members.dedup();
    assert_eq!((members.len(), cluster.map.groups.len()), (4_000, 2_000));
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |hardware| SimulatedCluster::new(hardware).map(|_| "not refused").unwrap_err().0;
    assert!(refused(hardware(0, Scheme::Single)).starts_with("0 targets"));
    assert!(refused(hardware(60_000, Scheme::Single)).contains("120000 targets"));
    assert!(
        refused(hardware(10_001, Scheme::Mirror(2))).contains("mirror:2 can be simulated on up to 20000")
    );
    assert!(refused(hardware(1, Scheme::Mirror(3))).contains("needs more than 2 targets"));
    let cluster = SimulatedCluster::new(hardware(3, Scheme::Single)).unwrap();
    assert!(run(&cluster, load(0, false)).unwrap_err().0.starts_with("0 applications"));
    assert!(rebuild(&cluster, how(0), None).unwrap_err().0.contains("no other replica"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// No queue exceeds the rate of the scarcest resource, no station is busy for more than all the
    /// time, and the same call gives the same result.
    #[test]
    fn nothing_is_faster_than_its_parts(
        (servers, targets, clients) in (2u32..9, 1u32..4, 1u32..12),
        rates in prop::array::uniform5(0.2f64..8.0),
        mirrored: bool, writes: bool, stripe_count in 1u16..6, record_shift in 18u32..23,
    ) {
        let scheme = if mirrored { Scheme::Mirror(2) } else { Scheme::Single };
        let [read, write, link, cores, client] = rates.map(|rate| rate * GB);
        let hardware = Hardware {
            servers, targets, racks: 0, target_read: read, target_write: write, server_link: link, server_cores: cores, client_link: client, scheme,
        };
        let load = Load { stripe_count, record_bytes: 1 << record_shift, seed: 7, ..load(clients, writes) };
        let found = measured(hardware, load);
        let copies = if mirrored && writes { 2.0 } else { 1.0 };
        let (all, there) = (f64::from(servers * targets), f64::from(servers));
        let bound = (all * if writes { write } else { read } / copies)
            .min(there * cores / copies)
            .min(there * link / copies)
            .min(f64::from(clients) * client);
        // Requests in flight at the start of the measurement were partly done before.
        prop_assert!(found.bytes_per_s <= 1.2 * bound, "{found:?} {bound}");
        prop_assert!(found.busy.iter().all(|(_, share)| *share <= 1.3), "{found:?}");
        prop_assert!(found.imbalance >= 0.999, "{found:?}");
        prop_assert_eq!(found.bytes_per_s, measured(hardware, load).bytes_per_s);
    }
}
