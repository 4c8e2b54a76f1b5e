//! Compares the formulas of `layout::plan` with published characterisations of four systems.
//!
//! Each system has one set of model parameters, derived here from the cells marked "used"; all
//! others are held out. Capacity cells are exact as rounded in the source, bandwidth is within 10
//! %, IOPS and latencies within 15 %. Cells outside of that are exceptions with a reason;
//! `docs/planning.md` shows the whole ledger, and a test keeps it up to date.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use layout::plan::{Description, Model, Plan, Provision, Resource, plan};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const BANDWIDTH: f64 = 0.10;
const IOPS: f64 = 0.15;
const TIB: f64 = 1_099_511_627_776.0;

/// A cell of a table, with the formulas' result.
struct Cell {
    name: String,
    published: f64,
    planned: f64,
    tolerance: f64,
    used: bool,
}

impl Cell {
    fn error(&self) -> f64 {
        self.planned / self.published - 1.0
    }

    fn is_met(&self) -> bool {
        if self.tolerance == 0.0 {
            self.planned == self.published
        } else {
            self.error().abs() <= self.tolerance
        }
    }
}

#[derive(Default)]
struct Ledger(Vec<Cell>);

impl Ledger {
    fn add(&mut self, name: impl Into<String>, published: f64, planned: f64, tolerance: f64) {
        self.0.push(Cell { name: name.into(), published, planned, tolerance, used: false });
    }

    /// A cell from which a parameter was derived.
    fn used(&mut self, name: impl Into<String>, published: f64, planned: f64, tolerance: f64) {
        self.0.push(Cell { name: name.into(), published, planned, tolerance, used: true });
    }
}

/// Cells that the formulas don't meet, and why.
const EXCEPTIONS: &[(&str, &str)] = &[(
    "BeeGFS Medium+1: usable TiB, 6.4 TB drives",
    "the source's own formula gives 898.96; it prints 898, twice the rounded 449 of the column with half as large drives",
)];

/// A model with nothing but the source's numbers: weft's own figures don't apply to other systems.
fn bare() -> Model {
    Model { core_bytes_per_s: None, core_requests_per_s: None, thread_bytes_per_s: None, ..Model::default() }
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// Rate that a resource alone would allow.
fn limit(rate: &layout::plan::PlannedRate, resource: Resource) -> f64 {
    rate.limits.iter().find(|limit| limit.resource == resource).unwrap().per_s
}

#[derive(Deserialize)]
struct Beegfs {
    dedicated_servers: Vec<u32>,
    data_drives: Vec<f64>,
    storage_targets: Vec<f64>,
    rack_units: Vec<f64>,
    usable_tib_1600: Vec<f64>,
    usable_tib_3200: Vec<f64>,
    usable_tib_6400: Vec<f64>,
    read_gb_s: Vec<f64>,
    write_gb_s: Vec<f64>,
    random_read_m_iops: Vec<f64>,
    random_write_m_iops: Vec<f64>,
    peak_write_gb_s: f64,
    peak_read_gb_s: f64,
    peak_write_m_iops: f64,
    peak_read_m_iops: f64,
    ceiling_drives_read_gb_s: f64,
    ceiling_drives_write_gb_s: f64,
    ceiling_links_gb_s: f64,
    one_thread_read_gb_s: f64,
    one_thread_write_gb_s: f64,
    raid0_target_write_dd_gb_s: f64,
    raid0_target_write_bench_gb_s: f64,
    description: Description,
}

impl Beegfs {
    fn plan(&self, column: usize, drive: &str, model: &Model) -> Plan {
        let mut description = self.description.clone();
        description.model = model.clone();
        description.server[1].count = self.dedicated_servers[column];
        description.server.iter_mut().for_each(|server| server.drive = drive.into());
        plan(&description).unwrap()
    }

    /// Links: read and write of Small. Requests: random read and write of Small. One program: its
    /// read.
    fn model(&self) -> Model {
        let whole = Model { link_share: 1.0, core_requests_per_s: Some(1.0), ..bare() };
        let small = self.plan(0, "nvme-p4600-1.6tb", &whole);
        let links = limit(&small.read, Resource::ServerLinks) / 1e9;
        let zones = limit(&small.random_read, Resource::Cores);
        Model {
            link_share: mean(&[self.read_gb_s[0], self.write_gb_s[0]]) / links,
            core_requests_per_s: Some(
                mean(&[self.random_read_m_iops[0], self.random_write_m_iops[0]]) * 1e6 / zones,
            ),
            thread_bytes_per_s: Some(self.one_thread_read_gb_s * 1e9),
            ..bare()
        }
    }

    fn scaling(&self, ledger: &mut Ledger, model: &Model) {
        let tib = |drive: &str, column| (self.plan(column, drive, model).capacity.usable_bytes / TIB).round();
        for (column, name) in ["Small", "Small+1", "Small+2", "Medium", "Medium+1"].into_iter().enumerate() {
            let planned = self.plan(column, "nvme-p4600-1.6tb", model);
            let of = |what: &str| format!("BeeGFS {name}: {what}");
            ledger.add(of("data drives"), self.data_drives[column], planned.drives as f64, 0.0);
            ledger.add(of("storage targets"), self.storage_targets[column], planned.targets as f64, 0.0);
            ledger.add(of("rack units"), self.rack_units[column], planned.rack_units as f64, 0.0);
            ledger.add(
                of("usable TiB, 1.6 TB drives"),
                self.usable_tib_1600[column],
                tib("nvme-p4600-1.6tb", column),
                0.0,
            );
            ledger.add(
                of("usable TiB, 3.2 TB drives"),
                self.usable_tib_3200[column],
                tib("3200gb", column),
                0.0,
            );
            ledger.add(
                of("usable TiB, 6.4 TB drives"),
                self.usable_tib_6400[column],
                tib("6400gb", column),
                0.0,
            );
            let rates = [
                ("read, GB/s", self.read_gb_s[column], planned.read.per_s),
                ("write, GB/s", self.write_gb_s[column], planned.write.per_s),
            ];
            for (what, published, planned) in rates {
                if column == 0 {
                    ledger.used(of(what), published, planned / 1e9, BANDWIDTH);
                } else {
                    ledger.add(of(what), published, planned / 1e9, BANDWIDTH);
                }
            }
        }
        let (small, medium) = (self.plan(0, "3200gb", model), self.plan(3, "3200gb", model));
        let m = |rate: &layout::plan::PlannedRate| rate.per_s / 1e6;
        ledger.used(
            "BeeGFS Small: random read, M IOPS",
            self.random_read_m_iops[0],
            m(&small.random_read),
            IOPS,
        );
        ledger.used(
            "BeeGFS Small: random write, M IOPS",
            self.random_write_m_iops[0],
            m(&small.random_write),
            IOPS,
        );
        ledger.add(
            "BeeGFS Medium: random read, M IOPS",
            self.random_read_m_iops[1],
            m(&medium.random_read),
            IOPS,
        );
        ledger.add(
            "BeeGFS Medium: random write, M IOPS",
            self.random_write_m_iops[1],
            m(&medium.random_write),
            IOPS,
        );
    }

    fn experiment(&self, ledger: &mut Ledger, model: &Model) {
        let medium = self.plan(3, "nvme-p4600-1.6tb", model);
        let whole = self.plan(3, "nvme-p4600-1.6tb", &Model { link_share: 1.0, ..model.clone() });
        let gb = |rate: &layout::plan::PlannedRate, resource| limit(rate, resource) / 1e9;
        let add = |ledger: &mut Ledger, what: &str, published, planned, tolerance| {
            ledger.add(format!("BeeGFS 33 targets: {what}"), published, planned, tolerance);
        };
        let ceilings = [
            ("drives' read, GB/s", self.ceiling_drives_read_gb_s, gb(&whole.read, Resource::Drives).round()),
            (
                "drives' write, GB/s",
                self.ceiling_drives_write_gb_s,
                gb(&whole.write, Resource::Drives).round(),
            ),
            (
                "links, GB/s",
                self.ceiling_links_gb_s,
                (gb(&whole.read, Resource::ServerLinks) * 10.0).round() / 10.0,
            ),
        ];
        for (what, published, planned) in ceilings {
            add(ledger, &format!("ceiling of {what}"), published, planned, 0.0);
        }
        add(ledger, "peak read, GB/s", self.peak_read_gb_s, medium.read.per_s / 1e9, BANDWIDTH);
        add(ledger, "peak write, GB/s", self.peak_write_gb_s, medium.write.per_s / 1e9, BANDWIDTH);
        add(ledger, "peak random read, M IOPS", self.peak_read_m_iops, medium.random_read.per_s / 1e6, IOPS);
        add(
            ledger,
            "peak random write, M IOPS",
            self.peak_write_m_iops,
            medium.random_write.per_s / 1e6,
            IOPS,
        );
        let target = gb(&whole.write, Resource::Drives) / medium.targets as f64;
        add(ledger, "a RAID 0 target, dd, GB/s", self.raid0_target_write_dd_gb_s, target, BANDWIDTH);
        add(
            ledger,
            "a RAID 0 target, its benchmark, GB/s",
            self.raid0_target_write_bench_gb_s,
            target,
            BANDWIDTH,
        );
        let thread = medium.thread_bytes_per_s.unwrap() / 1e9;
        ledger.used("BeeGFS one thread: read, GB/s", self.one_thread_read_gb_s, thread, BANDWIDTH);
        ledger.add("BeeGFS one thread: write, GB/s", self.one_thread_write_gb_s, thread, BANDWIDTH);
    }
}

#[derive(Deserialize)]
struct Pixstor {
    sequential_gb_s: [f64; 4],
    shared_gb_s: [f64; 4],
    random_m_iops: [f64; 4],
    ceiling_drives_read_gb_s: f64,
    ceiling_links_gb_s: f64,
    description: Description,
}

impl Pixstor {
    fn plan(&self, servers: u32, model: Model) -> Plan {
        let mut description = Description { model, ..self.description.clone() };
        description.server[0].count = servers;
        plan(&description).unwrap()
    }

    /// Links: both reads of many files; the formula accounts for a write's two transfers over the
    /// links. One file: the sustained columns. Requests: both random reads; a mirrored write's
    /// second half: the sustained one.
    fn model(&self) -> Model {
        let whole = self.plan(4, Model { link_share: 1.0, core_requests_per_s: Some(1.0), ..bare() });
        let links = limit(&whole.read, Resource::ServerLinks) / 1e9;
        let [_, peak_read, write, read] = self.sequential_gb_s;
        let [_, _, shared_write, shared_read] = self.shared_gb_s;
        let [_, peak_random, random_write, random_read] = self.random_m_iops;
        Model {
            link_share: mean(&[peak_read, read]) / links,
            shared_read_share: shared_read / read,
            shared_write_share: shared_write / write,
            core_requests_per_s: Some(mean(&[peak_random, random_read]) * 1e6 / 4.0),
            copy_work: random_read / random_write - 1.0,
            ..bare()
        }
    }

    fn fill(&self, ledger: &mut Ledger) {
        let model = self.model();
        let planned = self.plan(4, model.clone());
        let whole = self.plan(4, Model { link_share: 1.0, ..model });
        let drives = limit(&whole.read, Resource::Drives) / 1e9;
        let links = limit(&whole.read, Resource::ServerLinks) / 1e9;
        ledger.add(
            "PixStor: ceiling of drives' read, GB/s",
            self.ceiling_drives_read_gb_s,
            drives.round(),
            0.0,
        );
        ledger.add("PixStor: ceiling of links, GB/s", self.ceiling_links_gb_s, links, 0.0);
        let rows = [
            ("N-N", self.sequential_gb_s, [&planned.write, &planned.read], 1e9, BANDWIDTH, [1, 3, 9]),
            (
                "N-1",
                self.shared_gb_s,
                [&planned.shared_write, &planned.shared_read],
                1e9,
                BANDWIDTH,
                [2, 3, 9],
            ),
            (
                "random",
                self.random_m_iops,
                [&planned.random_write, &planned.random_read],
                1e6,
                IOPS,
                [1, 2, 3],
            ),
        ];
        for (row, published, rates, unit, tolerance, used) in rows {
            for (column, name) in
                ["peak write", "peak read", "sustained write", "sustained read"].iter().enumerate()
            {
                let of = format!("PixStor {row}: {name}, {}", if unit == 1e9 { "GB/s" } else { "M IOPS" });
                let planned = rates[column % 2].per_s / unit;
                if used.contains(&column) {
                    ledger.used(of, published[column], planned, tolerance);
                } else {
                    ledger.add(of, published[column], planned, tolerance);
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Fsx {
    tib: f64,
    measured_deployment: String,
    write: [f64; 2],
    read: [f64; 2],
    cached_read: [f64; 2],
    per_tib: BTreeMap<String, [f64; 5]>,
    of_2_4_tib: BTreeMap<String, [f64; 5]>,
}

impl Fsx {
    fn fill(&self, ledger: &mut Ledger) {
        let names = ["network baseline", "network burst", "cache GiB", "disk baseline", "disk burst"];
        for (deployment, published) in &self.of_2_4_tib {
            let provision = Provision { deployment: deployment.clone(), tib: self.tib };
            let promised = provision.expected_performance(&bare()).unwrap().promised;
            let planned = [
                promised.network_mb_s,
                promised.network_burst_mb_s,
                promised.cache_gib,
                promised.drives_mb_s,
                promised.drives_burst_mb_s,
            ];
            for (column, name) in names.iter().enumerate() {
                let unit = if column == 2 { 100.0 } else { 1.0 };
                let rounded = (planned[column] * unit).round() / unit;
                ledger.add(format!("FSx {deployment}, 2.4 TiB: {name}"), published[column], rounded, 0.0);
            }
        }
        self.measured(ledger);
    }

    fn provision(&self) -> Provision {
        Provision { deployment: self.measured_deployment.clone(), tib: self.tib }
    }

    /// Delivered relative to promised: both cached reads; of drives without credits: the write.
    fn model(&self) -> Model {
        let promised = self.provision().expected_performance(&bare()).unwrap().promised;
        let [cached_burst, cached] = self.cached_read;
        Model {
            promised_share: mean(&[
                cached_burst / promised.network_burst_mb_s,
                cached / promised.network_mb_s,
            ]),
            promised_drive_baseline_share: self.write[1] / promised.drives_mb_s,
            ..bare()
        }
    }

    fn measured(&self, ledger: &mut Ledger) {
        let planned = self.provision().expected_performance(&self.model()).unwrap();
        let [cached_burst, cached] = self.cached_read;
        let mb = |rate: f64| rate / 1e6;
        ledger.used(
            "FSx cached read, with credits, MB/s",
            cached_burst,
            mb(planned.cached_burst_bytes_per_s),
            BANDWIDTH,
        );
        ledger.used("FSx cached read, without, MB/s", cached, mb(planned.cached_bytes_per_s), BANDWIDTH);
        ledger.add(
            "FSx write, with credits, MB/s",
            self.write[0],
            mb(planned.drives_burst_bytes_per_s),
            BANDWIDTH,
        );
        ledger.used("FSx write, without, MB/s", self.write[1], mb(planned.drives_bytes_per_s), BANDWIDTH);
        ledger.add(
            "FSx read, with credits, MB/s",
            self.read[0],
            mb(planned.drives_burst_bytes_per_s),
            BANDWIDTH,
        );
        ledger.add("FSx read, without, MB/s", self.read[1], mb(planned.drives_bytes_per_s), BANDWIDTH);
    }
}

#[derive(Deserialize)]
struct Weka {
    random_read_m_iops: f64,
    mixed_m_iops: f64,
    random_write_m_iops: [f64; 2],
    read_gb_s: f64,
    random_read_us: f64,
    random_write_us: [f64; 2],
    read_128k_us: f64,
    description: Description,
}

impl Weka {
    fn plan(&self, model: Model) -> Plan {
        plan(&Description { model, ..self.description.clone() }).unwrap()
    }

    /// Requests: random read and 70/30, by their geometric mean; the formula accounts for the cost
    /// of a write relative to a read. Links: the default.
    fn model(&self) -> Model {
        let unit = self.plan(Model { core_requests_per_s: Some(1.0), ..bare() });
        let of_read = self.random_read_m_iops * 1e6 / limit(&unit.random_read, Resource::Cores);
        let of_mixed = self.mixed_m_iops * 1e6 / limit(&unit.mixed, Resource::Cores);
        Model { core_requests_per_s: Some((of_read * of_mixed).sqrt()), ..bare() }
    }

    fn fill(&self, ledger: &mut Ledger) {
        let planned = self.plan(self.model());
        let m = |rate: &layout::plan::PlannedRate| rate.per_s / 1e6;
        ledger.used("Weka random read, M IOPS", self.random_read_m_iops, m(&planned.random_read), IOPS);
        ledger.used("Weka random 70/30, M IOPS", self.mixed_m_iops, m(&planned.mixed), IOPS);
        let [deep, shallow] = self.random_write_m_iops;
        ledger.add("Weka random write, depth 16, M IOPS", deep, m(&planned.random_write), IOPS);
        ledger.add("Weka random write, depth 4, M IOPS", shallow, m(&planned.random_write), IOPS);
        ledger.add("Weka read of 128 KiB, GB/s", self.read_gb_s, planned.read.per_s / 1e9, BANDWIDTH);
        // The description has 8 jobs with a queue depth of 16 on each client.
        let [read, write, _] = planned.latency_s.unwrap().map(|seconds| seconds * 1e6);
        ledger.add("Weka random read, depth 32, us", self.random_read_us, read * 2.0, IOPS);
        ledger.add("Weka random write, depth 8, us", self.random_write_us[0], write / 2.0, IOPS);
        ledger.add("Weka random write, depth 16, us", self.random_write_us[1], write, IOPS);
        let large = 9.0 * 128.0 * 131_072.0 / planned.read.per_s * 1e6;
        ledger.add("Weka read of 128 KiB, depth 16, us", self.read_128k_us, large, IOPS);
    }
}

fn beegfs() -> Beegfs {
    toml::from_str(include_str!("published/beegfs-nvme-2019.toml")).unwrap()
}

fn pixstor() -> Pixstor {
    toml::from_str(include_str!("published/pixstor-nvme-2020.toml")).unwrap()
}

fn fsx() -> Fsx {
    toml::from_str(include_str!("published/fsx-persistent-2020.toml")).unwrap()
}

fn weka() -> Weka {
    toml::from_str(include_str!("published/weka-2020.toml")).unwrap()
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    let beegfs = beegfs();
    let model = beegfs.model();
    beegfs.scaling(&mut ledger, &model);
    beegfs.experiment(&mut ledger, &model);
    pixstor().fill(&mut ledger);
    fsx().fill(&mut ledger);
    weka().fill(&mut ledger);
    ledger
}

fn exception(name: &str) -> Option<&'static str> {
    EXCEPTIONS.iter().find(|(exception, _)| *exception == name).map(|(_, why)| *why)
}

/// The ledger as shown in the document.
fn table(ledger: &Ledger) -> String {
    let mut text = String::from("| cell | published | planned | error | |\n|---|---|---|---|---|\n");
    for cell in &ledger.0 {
        let error = if cell.tolerance == 0.0 && cell.is_met() {
            "exact".to_string()
        } else {
            format!("{:+.1} %", cell.error() * 100.0)
        };
        let remark = match exception(&cell.name) {
            Some(why) => format!("exception: {why}"),
            None if cell.used => "used".into(),
            None => String::new(),
        };
        let number = |value: f64| {
            let text = format!("{value:.*}", if value < 10.0 { 3 } else { 2 });
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        };
        let numbers = format!("{} | {} | {error}", number(cell.published), number(cell.planned));
        writeln!(text, "| {} | {numbers} | {remark} |", cell.name).unwrap();
    }
    text
}

#[test]
fn every_cell_is_met_or_a_known_exception() {
    let ledger = ledger();
    for cell in &ledger.0 {
        let known = exception(&cell.name).is_some();
        assert_eq!(
            cell.is_met(),
            !known,
            "{}: published {}, planned {}, off by {:+.1} %",
            cell.name,
            cell.published,
            cell.planned,
            cell.error() * 100.0
        );
    }
    for (name, _) in EXCEPTIONS {
        assert!(ledger.0.iter().any(|cell| cell.name == *name), "no cell {name}");
    }
}

#[test]
fn no_parameter_is_worked_out_from_a_cell_that_is_held_out() {
    // Held-out cells are falsified; the parameters must not change.
    let spoil = |cells: &mut [f64]| cells.iter_mut().for_each(|cell| *cell *= 3.0);
    let mut spoilt = beegfs();
    for cells in [&mut spoilt.read_gb_s, &mut spoilt.write_gb_s] {
        spoil(&mut cells[1..]);
    }
    for cells in [&mut spoilt.random_read_m_iops, &mut spoilt.random_write_m_iops] {
        spoil(&mut cells[1..]);
    }
    spoil(std::slice::from_mut(&mut spoilt.one_thread_write_gb_s));
    assert_eq!(spoilt.model(), beegfs().model());

    let mut spoilt = pixstor();
    spoil(&mut spoilt.sequential_gb_s[..1]);
    spoil(&mut spoilt.shared_gb_s[..2]);
    spoil(&mut spoilt.random_m_iops[..1]);
    assert_eq!(spoilt.model(), pixstor().model());

    let mut spoilt = fsx();
    spoil(&mut spoilt.write[..1]);
    spoil(&mut spoilt.read);
    assert_eq!(spoilt.model(), fsx().model());

    let mut spoilt = weka();
    spoil(&mut spoilt.random_write_m_iops);
    spoil(std::slice::from_mut(&mut spoilt.read_gb_s));
    assert_eq!(spoilt.model(), weka().model());
}

#[test]
fn what_the_vendor_promises_for_a_tib_is_the_preset() {
    for (deployment, row) in fsx().per_tib {
        let preset = layout::plan::DEPLOYMENTS.iter().find(|(name, _)| *name == deployment).unwrap().1;
        let columns = [
            preset.network_mb_s,
            preset.network_burst_mb_s,
            preset.cache_gib,
            preset.drives_mb_s,
            preset.drives_burst_mb_s,
        ];
        assert_eq!(columns, row, "{deployment}");
    }
}

#[test]
fn one_pair_of_mirrored_servers_gives_half_of_two() {
    let pixstor = pixstor();
    let (two, one) = (pixstor.plan(4, pixstor.model()), pixstor.plan(2, pixstor.model()));
    for (whole, half) in
        [(&two.read, &one.read), (&two.write, &one.write), (&two.random_write, &one.random_write)]
    {
        assert!((half.per_s * 2.0 / whole.per_s - 1.0).abs() < 1e-12);
    }
}

#[test]
fn links_bind_where_the_sources_say_so() {
    let beegfs = beegfs();
    let medium = beegfs.plan(3, "3200gb", &beegfs.model());
    let pixstor = pixstor();
    let mirrored = pixstor.plan(4, pixstor.model());
    for rate in [&medium.read, &medium.write, &mirrored.read, &mirrored.write] {
        assert_eq!(rate.binds, Resource::ServerLinks);
    }
}

#[test]
fn the_default_share_of_links_is_the_mean_of_those_published() {
    let published = mean(&[beegfs().model().link_share, pixstor().model().link_share]);
    assert!((published - Model::default().link_share).abs() < 0.01, "{published}");
}

#[test]
fn the_document_shows_this_ledger() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/planning.md");
    let document = std::fs::read_to_string(path).unwrap();
    let table = table(&ledger());
    assert!(document.contains(&table), "put this into docs/planning.md:\n{table}");
}
