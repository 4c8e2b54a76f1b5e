//! One word about a cluster, and what it is made of.

use super::{MeasuredPlace, TargetRate};
use serde::{Deserialize, Serialize};

/// How a cluster is, in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing to do.
    Healthy,
    /// Everything can be reached, but somebody should look.
    Warning,
    /// Some data can't be reached or written.
    Critical,
}

/// The health of a cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Health {
    pub verdict: Verdict,
    pub findings: Vec<HealthFinding>,
    /// The daily copies of the metadata; absent where nobody makes any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopiesInfo>,
    /// Where the metadata is; absent where that isn't known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreInfo>,
    /// When the ceilings of each target and node were measured last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<MeasuredPlace>,
    /// How fast targets are, and how much of their ceilings that is; of those whose nodes have told
    /// it lately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<TargetRate>,
}

/// The daily copies of the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopiesInfo {
    /// Where they are, on the machine of management.
    pub folder: String,
    /// How many are kept; 0: none are made.
    pub kept: u32,
    /// The newest one's file.
    pub newest: Option<String>,
    /// How old it is.
    pub age_s: Option<u64>,
    /// Why the last attempt to make one failed, if it did.
    pub failure: Option<String>,
}

/// The store of the metadata, and the disk that it is on; bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreInfo {
    /// Its folder, on the machine of management.
    pub path: String,
    /// What it takes.
    pub used: u64,
    /// The disk's capacity.
    pub capacity: u64,
    /// What of it is free.
    pub free: u64,
    /// What has to be free, else nothing new is made.
    pub needed: u64,
}

/// Something that isn't as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HealthFinding {
    /// How bad it is.
    pub verdict: Verdict,
    /// Object and cause.
    pub what: String,
    /// The remedy.
    pub hint: String,
}
