//! Kinds of drives and links that a description can name.
//!
//! Those with a model in their name are from the published characterisations that the tests compare
//! with. The others are typical of their class according to data sheets, for a first estimate:
//! before a purchase, put the data sheet's own numbers into the description (`[drive.NAME]`,
//! `[link.NAME]`). Failure rates are of the size that Backblaze's yearly drive statistics find in
//! the field (hard disks about 1.5 % a year, solid state about 1 %); rates of unreadable bits are
//! the data sheets' usual specification.

use serde::{Deserialize, Serialize};

/// A kind of drive.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Capacity, TB (10^12 bytes).
    pub tb: f64,
    /// Sequential read, GB/s (10^9 bytes).
    pub read_gb_s: f64,
    /// Sequential write, GB/s.
    pub write_gb_s: f64,
    /// Random reads of 4 KiB a second; without it they are not a limit.
    pub read_iops: Option<f64>,
    /// Random writes of 4 KiB a second; without it they are not a limit.
    pub write_iops: Option<f64>,
    /// Share of such drives that fails in a year.
    #[serde(default = "usual_afr")]
    pub afr: f64,
    /// Probability that a bit is unreadable.
    #[serde(default = "usual_unreadable")]
    pub unreadable_per_bit: f64,
}

/// A kind of network link.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Rate in each direction, GB/s.
    pub gb_s: f64,
}

const SOLID_STATE_AFR: f64 = 0.01;
const HARD_DISK_AFR: f64 = 0.015;
const SOLID_STATE_UNREADABLE: f64 = 1e-17;
const HARD_DISK_UNREADABLE: f64 = 1e-15;

fn usual_afr() -> f64 {
    SOLID_STATE_AFR
}

fn usual_unreadable() -> f64 {
    SOLID_STATE_UNREADABLE
}

const fn solid(
    tb: f64,
    read_gb_s: f64,
    write_gb_s: f64,
    read_iops: Option<f64>,
    write_iops: Option<f64>,
) -> Drive {
    Drive {
        tb,
        read_gb_s,
        write_gb_s,
        read_iops,
        write_iops,
        afr: SOLID_STATE_AFR,
        unreadable_per_bit: SOLID_STATE_UNREADABLE,
    }
}

const fn hard_disk(tb: f64, gb_s: f64, iops: f64) -> Drive {
    Drive {
        afr: HARD_DISK_AFR,
        unreadable_per_bit: HARD_DISK_UNREADABLE,
        ..solid(tb, gb_s, gb_s, Some(iops), Some(iops))
    }
}

/// Drives by name.
pub const DRIVES: &[(&str, Drive)] = &[
    ("nvme-gen4-3.84tb", solid(3.84, 6.8, 3.5, Some(1e6), Some(180e3))),
    ("nvme-gen4-7.68tb", solid(7.68, 6.8, 4.0, Some(1e6), Some(200e3))),
    ("nvme-gen4-15.36tb", solid(15.36, 6.8, 4.0, Some(1e6), Some(200e3))),
    ("nvme-gen5-15.36tb", solid(15.36, 13.0, 8.0, Some(2.5e6), Some(300e3))),
    ("nvme-p4600-1.6tb", solid(1.6, 3.2, 1.3, None, None)),
    ("nvme-micron-7.68tb", solid(7.68, 3.0, 1.8, Some(520e3), Some(85e3))),
    ("sas-ssd-3.84tb", solid(3.84, 2.0, 1.6, Some(300e3), Some(70e3))),
    ("sata-ssd-3.84tb", solid(3.84, 0.54, 0.5, Some(95e3), Some(30e3))),
    ("hdd-10tb", hard_disk(10.0, 0.24, 170.0)),
    ("hdd-20tb", hard_disk(20.0, 0.27, 170.0)),
];

/// Links by name. InfiniBand EDR has the rate that the published characterisation uses.
pub const LINKS: &[(&str, Link)] = &[
    ("1gbe", Link { gb_s: 0.125 }),
    ("10gbe", Link { gb_s: 1.25 }),
    ("25gbe", Link { gb_s: 3.125 }),
    ("40gbe", Link { gb_s: 5.0 }),
    ("50gbe", Link { gb_s: 6.25 }),
    ("100gbe", Link { gb_s: 12.5 }),
    ("200gbe", Link { gb_s: 25.0 }),
    ("400gbe", Link { gb_s: 50.0 }),
    ("edr", Link { gb_s: 12.4 }),
    ("hdr", Link { gb_s: 24.8 }),
    ("ndr", Link { gb_s: 49.6 }),
];
