//! The exposure map: data that would be lost, and data that would be left with one replica, if a
//! target, a node or a rack failed now.
//!
//! Computed from the metadata and the cluster map. The bytes of a file are those of its length, so
//! holes count as data. A member of a mirrored group counts when it is in sync. Content inline in
//! the metadata is not counted: it is lost with the node that stores the metadata, and so is access
//! to everything else.

use crate::finding::CheckReport;
use crate::online::Online;
use crate::tree::Tree;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::{ClusterMap, InodeId, Layout, MemberState, NodeId, Result, Role, TargetId};

/// Directories listed for each target, node and rack.
const MAX_DIRECTORIES: usize = 5;

/// A failure domain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Domain {
    /// One target.
    Target(TargetId),
    /// All targets of a node.
    Node(NodeId),
    /// All targets of all nodes of a rack.
    Rack(String),
}

/// Amount of file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Files with such data.
    pub files: u64,
    /// Bytes, by the lengths of the files.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.files += u64::from(bytes > 0);
        self.bytes += bytes;
    }
}

/// A directory with much of the affected data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeavyDirectory {
    /// Its path; data in directories below it counts for those.
    pub path: String,
    /// Data that would be lost.
    pub lost: Amount,
    /// Data that would be left with one replica.
    pub at_risk: Amount,
}

/// Effect of the failure of one target, node or rack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainExposure {
    /// The domain that fails.
    pub domain: Domain,
    /// The name of the node; empty for a rack.
    pub node: String,
    /// It stores the metadata: without a backup of that (`weft meta backup`) everything is lost
    /// with it.
    pub keeps_metadata: bool,
    /// Data without an in-sync replica elsewhere.
    pub lost: Amount,
    /// Data that should have several in-sync replicas and would be left with one.
    pub at_risk: Amount,
    /// Directories with most of it.
    pub top: Vec<HeavyDirectory>,
}

/// The exposure map of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exposure {
    /// Files with content on targets, and their bytes.
    pub all: Amount,
    /// Data that should have several in-sync replicas and has one now.
    pub at_risk_now: Amount,
    /// Data without an in-sync replica now.
    pub lost_now: Amount,
    /// Files whose length exceeds their allocated space, or that are being written: their numbers
    /// are estimates.
    pub estimated_files: u64,
    /// Racks, then nodes, then targets; the largest loss first.
    pub exposed: Vec<DomainExposure>,
}

/// A file to be added to the exposure map.
pub(crate) struct ExposureFile<'a> {
    pub(crate) directory: &'a str,
    pub(crate) layout: &'a Layout,
    pub(crate) size: u64,
    pub(crate) is_estimate: bool,
}

/// Returns the exposure map of a running cluster, from a snapshot of its metadata.
///
/// # Errors
/// A metadata store that can't be read.
pub async fn exposure(cluster: &Online<'_>) -> Result<Exposure> {
    let tree = cluster.read(&mut CheckReport::default(), false).await?;
    let mut builder = ExposureBuilder::new(cluster.map);
    let mut directories: BTreeMap<InodeId, String> = BTreeMap::new();
    let total = tree.inodes.len() as u64;
    for (done, (&ino, known)) in tree.inodes.iter().enumerate() {
        if done % 4096 == 0 {
            (cluster.progress)("computing exposure", done as u64, total);
        }
        let (Some(layout), Some(inode)) = (tree.layout(ino), &known.inode) else { continue };
        let directory = directory_of(&tree, ino, &mut directories);
        let is_estimate = !tree.is_dense(ino) || tree.writing.contains(&ino);
        builder.add_file(&ExposureFile {
            directory: &directory,
            layout: &layout,
            size: inode.size,
            is_estimate,
        });
    }
    Ok(builder.finish())
}

fn directory_of(tree: &Tree, ino: InodeId, known: &mut BTreeMap<InodeId, String>) -> String {
    match tree.inodes.get(&ino).and_then(|known| known.names.first()) {
        Some(name) => known.entry(name.dir).or_insert_with(|| tree.path(name.dir)).clone(),
        None => "files without a name".into(),
    }
}

/// Accumulates the exposure map file by file.
pub(crate) struct ExposureBuilder<'a> {
    map: &'a ClusterMap,
    exposure: Exposure,
    domains: BTreeMap<Domain, DomainLoad>,
}

#[derive(Default)]
struct DomainLoad {
    lost: Amount,
    at_risk: Amount,
    directories: BTreeMap<String, (Amount, Amount)>,
}

/// Affected bytes of one file.
#[derive(Clone, Copy, Default)]
struct Bytes {
    lost: u64,
    at_risk: u64,
}

impl<'a> ExposureBuilder<'a> {
    pub(crate) fn new(map: &'a ClusterMap) -> ExposureBuilder<'a> {
        let targets = map.targets.iter().map(|target| Domain::Target(target.id));
        let nodes = map.nodes.iter().map(|node| Domain::Node(node.id));
        let racks = map.nodes.iter().filter_map(|node| Some(Domain::Rack(node.rack.clone()?)));
        let domains =
            targets.chain(nodes).chain(racks).map(|domain| (domain, DomainLoad::default())).collect();
        ExposureBuilder { map, exposure: Exposure::default(), domains }
    }

    /// Adds a file.
    pub(crate) fn add_file(&mut self, file: &ExposureFile<'_>) {
        let mut here: BTreeMap<Domain, Bytes> = BTreeMap::new();
        let mut now = Bytes::default();
        for stripe in 0..file.layout.groups.len() {
            let bytes = layout::local_len(file.layout, stripe, file.size);
            self.add_stripe(file.layout, stripe, bytes, (&mut here, &mut now));
        }
        self.exposure.all.add(file.size);
        self.exposure.at_risk_now.add(now.at_risk);
        self.exposure.lost_now.add(now.lost);
        self.exposure.estimated_files += u64::from(file.is_estimate);
        for (domain, bytes) in here {
            let Some(load) = self.domains.get_mut(&domain) else { continue };
            load.lost.add(bytes.lost);
            load.at_risk.add(bytes.at_risk);
            if bytes.lost + bytes.at_risk > 0 {
                let (lost, at_risk) = load.directories.entry(file.directory.to_owned()).or_default();
                lost.add(bytes.lost);
                at_risk.add(bytes.at_risk);
            }
        }
    }

    fn add_stripe(
        &self,
        layout: &Layout,
        stripe: usize,
        bytes: u64,
        (here, now): (&mut BTreeMap<Domain, Bytes>, &mut Bytes),
    ) {
        let group = self.map.group(layout.groups[stripe]);
        let members = group.into_iter().flat_map(|group| group.members_with_states());
        let good: Vec<TargetId> =
            members.filter(|(_, state)| *state == MemberState::InSync).map(|(target, _)| target).collect();
        let is_mirrored = group.is_some_and(|group| group.scheme.is_redundant());
        match good.len() {
            0 => now.lost += bytes,
            1 if is_mirrored => now.at_risk += bytes,
            _ => {}
        }
        let node_of = |target: &TargetId| self.map.target(*target).map(|target| target.node);
        let mut touched: Vec<Domain> = good.iter().map(|target| Domain::Target(*target)).collect();
        touched.extend(good.iter().filter_map(node_of).map(Domain::Node));
        touched.extend(good.iter().filter_map(|id| Some(Domain::Rack(self.map.rack_of(*id)?.into()))));
        touched.sort_unstable();
        touched.dedup();
        for domain in touched {
            let stays = |target: &&TargetId| match &domain {
                Domain::Target(dead) => *target != dead,
                Domain::Node(dead) => node_of(target) != Some(*dead),
                Domain::Rack(dead) => self.map.rack_of(**target) != Some(dead),
            };
            let left = good.iter().filter(stays).count();
            let entry = here.entry(domain).or_default();
            match left {
                0 => entry.lost += bytes,
                1 if is_mirrored => entry.at_risk += bytes,
                _ => {}
            }
        }
    }

    /// Returns the exposure map.
    pub(crate) fn finish(self) -> Exposure {
        let ExposureBuilder { map, mut exposure, domains } = self;
        exposure.exposed =
            domains.into_iter().map(|(domain, load)| domain_exposure(map, domain, load)).collect();
        let size = |exposed: &DomainExposure| match exposed.domain {
            Domain::Rack(_) => 0,
            Domain::Node(_) => 1,
            Domain::Target(_) => 2,
        };
        exposure.exposed.sort_by_cached_key(|exposed| {
            let (lost, at_risk) = (exposed.lost.bytes, exposed.at_risk.bytes);
            (size(exposed), std::cmp::Reverse((lost, at_risk)), exposed.domain.clone())
        });
        exposure
    }
}

fn domain_exposure(map: &ClusterMap, domain: Domain, load: DomainLoad) -> DomainExposure {
    let node = match &domain {
        Domain::Node(node) => Some(*node),
        Domain::Target(target) => map.target(*target).map(|target| target.node),
        Domain::Rack(_) => None,
    };
    let node = node.and_then(|node| map.node(node));
    let fails = |node: &types::Node| match &domain {
        Domain::Node(dead) => node.id == *dead,
        Domain::Rack(dead) => node.rack.as_ref() == Some(dead),
        Domain::Target(_) => false,
    };
    let mut top: Vec<HeavyDirectory> = load
        .directories
        .into_iter()
        .map(|(path, (lost, at_risk))| HeavyDirectory { path, lost, at_risk })
        .collect();
    top.sort_by_key(|heavy| std::cmp::Reverse((heavy.lost.bytes, heavy.at_risk.bytes)));
    top.truncate(MAX_DIRECTORIES);
    DomainExposure {
        keeps_metadata: map.nodes.iter().any(|node| fails(node) && node.roles.contains(&Role::Mgmt)),
        node: node.map_or_else(String::new, |node| node.name.clone()),
        domain,
        lost: load.lost,
        at_risk: load.at_risk,
        top,
    }
}

#[cfg(test)]
mod tests;
