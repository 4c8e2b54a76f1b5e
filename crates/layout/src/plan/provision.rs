//! File systems whose throughput is sold by the TiB, with burst credits.
//!
//! Throughput is promised for each TiB of 1024 GiB. But a file system's size is given in steps of
//! 1000 GiB that are called TiB (2.4 TiB are 2400 GiB), and cache memory is based on those. The
//! vendor's published table uses these units (FSx for Lustre, persistent file systems, 2020).

use super::{Model, invalid};
use serde::{Deserialize, Serialize};
use types::Result;

/// GiB in a "TiB" of a size, and in a TiB.
const GIB_IN_SIZE: f64 = 1000.0;
const GIB_IN_TIB: f64 = 1024.0;
const MB: f64 = 1e6;
/// Largest planned size in TiB.
const MAX_TIB: f64 = 1e9;

/// Promised performance for each TiB.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerTib {
    /// Network without credits, MB/s.
    pub network_mb_s: f64,
    /// Network while credits last, MB/s.
    pub network_burst_mb_s: f64,
    /// Cache memory, GiB.
    pub cache_gib: f64,
    /// Drives without credits, MB/s.
    pub drives_mb_s: f64,
    /// Drives while credits last, MB/s.
    pub drives_burst_mb_s: f64,
}

const fn persistent(network_mb_s: f64, cache_gib: f64, drives_mb_s: f64) -> PerTib {
    PerTib { network_mb_s, network_burst_mb_s: 1300.0, cache_gib, drives_mb_s, drives_burst_mb_s: 240.0 }
}

/// Deployments by name.
pub const DEPLOYMENTS: &[(&str, PerTib)] = &[
    ("persistent-50", persistent(250.0, 2.2, 50.0)),
    ("persistent-100", persistent(500.0, 4.4, 100.0)),
    ("persistent-200", persistent(750.0, 8.8, 200.0)),
];

/// A size of a deployment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// One of [`DEPLOYMENTS`].
    pub deployment: String,
    /// Size in the vendor's TiB.
    pub tib: f64,
}

/// Promised and expected performance of such a file system.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ExpectedPerformance {
    /// Promised, for the whole file system; MB/s and GiB.
    pub promised: PerTib,
    /// Expected, bytes a second: reads and writes that reach drives, while credits last.
    pub drives_burst_bytes_per_s: f64,
    /// The same without credits.
    pub drives_bytes_per_s: f64,
    /// Reads from the servers' memory, while credits last.
    pub cached_burst_bytes_per_s: f64,
    /// The same without credits.
    pub cached_bytes_per_s: f64,
}

impl Provision {
    /// Computes the promised and the expected performance.
    ///
    /// Errors: an unknown deployment, or an invalid size.
    pub fn expected_performance(&self, model: &Model) -> Result<ExpectedPerformance> {
        let found = DEPLOYMENTS.iter().find(|(name, _)| *name == self.deployment);
        let Some((_, per_tib)) = found else {
            let names: Vec<&str> = DEPLOYMENTS.iter().map(|(name, _)| *name).collect();
            let message = format!("provision: unknown deployment {:?}", self.deployment);
            return Err(invalid(message, format!("take one of {}", names.join(", "))));
        };
        if !(self.tib > 0.0 && self.tib <= MAX_TIB) {
            return Err(invalid(format!("provision: tib is {}", self.tib), "it must be a positive number"));
        }
        let tib = self.tib * GIB_IN_SIZE / GIB_IN_TIB;
        let promised = PerTib {
            network_mb_s: per_tib.network_mb_s * tib,
            network_burst_mb_s: per_tib.network_burst_mb_s * tib,
            cache_gib: per_tib.cache_gib * self.tib,
            drives_mb_s: per_tib.drives_mb_s * tib,
            drives_burst_mb_s: per_tib.drives_burst_mb_s * tib,
        };
        let given = |mb_s: f64| mb_s * MB * model.promised_share;
        Ok(ExpectedPerformance {
            promised,
            drives_burst_bytes_per_s: given(promised.drives_burst_mb_s)
                .min(given(promised.network_burst_mb_s)),
            drives_bytes_per_s: promised.drives_mb_s * MB * model.promised_drive_baseline_share,
            cached_burst_bytes_per_s: given(promised.network_burst_mb_s),
            cached_bytes_per_s: given(promised.network_mb_s),
        })
    }
}
