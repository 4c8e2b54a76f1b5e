//! Health of a cluster: an overall status and its details.

use super::{MeasuredPlace, TargetRate};
use serde::{Deserialize, Serialize};

/// Overall health status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No action needed.
    Healthy,
    /// Everything is reachable, but an administrator should check something.
    Warning,
    /// Some data can't be read or written.
    Critical,
}

/// The health of a cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Health {
    pub verdict: Verdict,
    pub findings: Vec<HealthFinding>,
    /// Daily backups of the metadata; absent where none are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<BackupsInfo>,
    /// The metadata store; absent where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreInfo>,
    /// When the ceilings of each target and node were last measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<MeasuredPlace>,
    /// Throughput of targets, and its share of their ceilings; for targets with recent reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<TargetRate>,
}

/// Daily backups of the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackupsInfo {
    /// Their folder, on the management node.
    pub folder: String,
    /// Number of retained backups; 0: none are made.
    pub kept: u32,
    /// File of the newest one.
    pub newest: Option<String>,
    /// Age of the newest one in seconds.
    pub age_s: Option<u64>,
    /// Error of the last attempt, if it failed.
    pub failure: Option<String>,
}

/// The metadata store and its disk; sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreInfo {
    /// Its folder, on the management node.
    pub path: String,
    /// Size of the store.
    pub used: u64,
    /// Capacity of the disk.
    pub capacity: u64,
    /// Free space of the disk.
    pub free: u64,
    /// Free space that is needed to create anything.
    pub needed: u64,
}

/// A problem of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HealthFinding {
    /// Name of a [`HealthCode`]. Text, so that a command can show a code that only a later version
    /// knows; empty in answers of versions without codes.
    #[serde(default)]
    pub code: String,
    /// Severity.
    pub verdict: Verdict,
    /// Object and cause.
    pub what: String,
    /// The remedy.
    pub hint: String,
}

types::finding_codes! {
    /// Codes of findings of `weft health`.
    pub enum HealthCode {
        NodeNotReported = "node-not-reported",
            "Management has started, and this node has not reported since. Its state, and that of its targets, is not known yet.",
            "Wait: a running node reports within seconds. After 15 s it counts as offline.",
        NodeLate = "node-late",
            "The node has sent no heartbeat for 6 s. After 15 s it counts as offline.",
            "Check that weft serve runs there, and the network in between.",
        NodeOffline = "node-offline",
            "The node has shut down, or has sent no heartbeat for 15 s. Data that only its targets have can't be reached.",
            "Start weft serve on that machine. If it is lost for good: weft target remove ID --dry-run shows what would be lost with each of its targets. weft node remove removes a node without targets.",
        ClockSkew = "clock-skew",
            "The clock of a node differs from management's by more than 30 s. Certificates and tokens may be refused.",
            "Set both clocks by NTP (chrony).",
        VersionMismatch = "version-mismatch",
            "A node and management run versions of weft that are not made to work together.",
            "Install the same version on all machines.",
        NodePartlyReachable = "node-partly-reachable",
            "Management reaches the node at some of its addresses only.",
            "Open its port in firewalls, or correct addresses in node.toml. The hint names the cause.",
        NodeUnreachable = "node-unreachable",
            "The node sends heartbeats, but can't be reached at any of its addresses.",
            "Open its port in firewalls, or correct addresses in node.toml. The hint names the cause.",
        NodeReportedUnreachable = "node-reported-unreachable",
            "Calls of clients or of other nodes wait for the node, since they can't reach it.",
            "Check the network between them: firewall, routes, networks in node.toml and in the cluster file. weft net show MOUNTPOINT on the client shows details.",
        NoTargets = "no-targets",
            "The cluster has no targets: no file with more than a few KiB can be written.",
            "weft target add PATH on a storage node.",
        PoolUnusable = "pool-unusable",
            "No target of the pool takes new files: each is offline, full, or being drained.",
            "weft target add PATH --pool NAME. Or bring back, empty or stop draining one of its targets.",
        TargetOffline = "target-offline",
            "The target is offline, and its node is not: its disk has failed or is not mounted.",
            "Check that its own disk is there and mounted (findmnt, dmesg). A disk that was only unmounted is served again when it is mounted. After a failure, weft target add PATH on its node, or a restart of the node, serves it again.",
        TargetFull = "target-full",
            "The disk of the target is full: it takes no new files.",
            "Delete files, enlarge its disk, or add a target.",
        TargetNearlyFull = "target-nearly-full",
            "The disk of the target is nearly full. New files prefer other targets.",
            "Delete files, enlarge its disk, or add a target.",
        DamageRepaired = "damage-repaired",
            "The last scrub of the target found damage, and all of it was repaired from other replicas.",
            "Check its disk (smartctl, kernel log). weft scrub start checks again.",
        DamageLeft = "damage-left",
            "The last scrub of the target found damage that could not be repaired from another replica.",
            "weft fsck names the files: restore them from a backup. Check the disk. weft scrub start checks again.",
        ChecksumsOff = "checksums-off",
            "Checksums of data are off: damage on disks and in the network is neither detected nor repaired.",
            "weft cluster set --checksums on.",
        GroupUnreachable = "group-unreachable",
            "No member in sync of a mirrored group is reachable: its files can be neither read nor written.",
            "Bring back one of the targets in sync; the hint names them. If all of them are lost for good, weft group recover GROUP --from TARGET continues from a replica that missed writes.",
        GroupRecovered = "group-recovered",
            "A mirrored group was recovered from a replica that had missed writes. It is reconciled with the metadata before clients are admitted.",
            "Start the metadata services. Run weft fsck afterwards.",
        ReplicaOutdated = "replica-outdated",
            "A replica of a mirrored group has missed writes. The others have the content.",
            "Nothing while it is resynced: weft group resync status shows the progress. Otherwise bring back its target. The hint says when other targets replace it.",
        ReplicaUnusable = "replica-unusable",
            "A replica of a mirrored group has no usable content, and gets a full copy. The others have the content.",
            "Nothing while it is copied: weft group resync status shows the progress. Otherwise bring back its target.",
        GroupOnSharedNode = "group-on-shared-node",
            "Several members of a mirrored group are on one node: the group survives the loss of a disk, not of that node.",
            "weft group rebalance --pool NAME moves members to other nodes. With too few nodes, add targets on others first.",
        GroupInSharedRack = "group-in-shared-rack",
            "Several members of a mirrored group are in one rack, although it could span more.",
            "weft group rebalance --pool NAME moves members to other racks.",
        ContentLost = "content-lost",
            "A target was removed that had the only replica of some content. Reads and writes of that content fail.",
            "weft fsck lists the files: delete them, or restore them from a backup.",
        MetadataDiskFull = "metadata-disk-full",
            "The disk of the metadata is full: nothing can be created. Existing files can be used and deleted.",
            "Free space on that disk, or enlarge it. Deleting files helps within minutes.",
        MetadataDiskNearlyFull = "metadata-disk-nearly-full",
            "The disk of the metadata is nearly full. Once it is full, nothing can be created.",
            "Free space on that disk, or enlarge it. Deleting files helps within minutes.",
        BackupFailed = "backup-failed",
            "The last daily backup of the metadata failed.",
            "weft meta backup makes one now. Check the log, and the free space of the folder of backups.",
        BackupOld = "backup-old",
            "The newest backup of the metadata is older than two days.",
            "weft meta backup makes one now. Check the log, and the free space of the folder of backups.",
        AuthorityCertificate = "authority-certificate",
            "The certificate of the cluster's authority ends soon, or has expired. No certificate is valid beyond that.",
            "Move the files to a new cluster before that day.",
        NodeCertificate = "node-certificate",
            "The certificate of a node ends soon, or has expired. A running node renews it in time.",
            "Start weft serve there. Its log shows why it couldn't renew the certificate.",
        ClientCertificate = "client-certificate",
            "The certificate of a client ends soon, or has expired. A mount renews it in time.",
            "Mount the client, or check the log of its mount. weft client add NAME creates another cluster file. weft client revoke NAME removes the client.",
    }
}
