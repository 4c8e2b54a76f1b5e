//! Faults of a cluster's processes, and their repair.

use super::super::outcome::TestResult;
use super::{Cluster, Part};
use std::thread;
use std::time::Duration;

/// A fault of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, as in a crash; repaired by a restart.
    Killed,
    /// SIGSTOP: it accepts connections, and doesn't answer.
    Stopped,
    /// Its node can neither receive nor send.
    Cut,
    /// Its node can't receive.
    NoReceive,
    /// Its node can't send.
    NoSend,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 5] = [Fault::Killed, Fault::Stopped, Fault::Cut, Fault::NoReceive, Fault::NoSend];
}

/// Duration of a fault of a storage node with mirrored files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultDuration {
    /// Over before a member needs to be ejected.
    Short,
    /// Until a group continues without the node, and some time more.
    UntilDegraded,
    /// Until after the node counts as offline: its lease of some seconds has also expired.
    UntilOffline,
}

impl FaultDuration {
    const MOMENT: Duration = Duration::from_secs(2);
    const WHILE: Duration = Duration::from_secs(3);
    const LONG: Duration = Duration::from_secs(20);
}

impl Cluster {
    /// Applies a fault to a storage node for some time, and repairs it.
    pub fn apply_fault(&mut self, node: usize, fault: Fault, lasting: FaultDuration) -> TestResult {
        let part = Part::Storage(node);
        self.inject(part, fault)?;
        match lasting {
            FaultDuration::Short => thread::sleep(FaultDuration::MOMENT),
            FaultDuration::UntilDegraded => {
                self.wait_until_degraded(node)?;
                thread::sleep(FaultDuration::WHILE);
            }
            FaultDuration::UntilOffline => thread::sleep(FaultDuration::LONG),
        }
        self.repair(part, fault)
    }

    /// Applies a fault.
    pub fn inject(&mut self, part: Part, fault: Fault) -> TestResult {
        match fault {
            Fault::Killed => {
                self.service(part).kill();
                Ok(())
            }
            Fault::Stopped => self.service(part).freeze(),
            Fault::Cut => self.network.isolate(self.node(part)),
            Fault::NoReceive => self.network.cut_incoming(self.node(part)),
            Fault::NoSend => self.network.cut_outgoing(self.node(part)),
        }
    }

    /// Repairs a fault. Repairing a cut restores the links of all nodes.
    pub fn repair(&mut self, part: Part, fault: Fault) -> TestResult {
        match fault {
            Fault::Killed => self.restart(part),
            Fault::Stopped => self.service(part).thaw(),
            Fault::Cut | Fault::NoReceive | Fault::NoSend => self.network.restore_links(),
        }
    }
}
