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
    Deaf,
    /// Its node can't send.
    Mute,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 5] = [Fault::Killed, Fault::Stopped, Fault::Cut, Fault::Deaf, Fault::Mute];
}

/// Duration of a fault of a storage node with mirrored files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Over before a member needs to be ejected.
    Moment,
    /// Until a group continues without the node, and some time more.
    Missed,
    /// Until after the node counts as offline: its lease of some seconds has also expired.
    Long,
}

impl Lasting {
    const MOMENT: Duration = Duration::from_secs(2);
    const WHILE: Duration = Duration::from_secs(3);
    const LONG: Duration = Duration::from_secs(20);
}

impl Cluster {
    /// Applies a fault to a storage node for some time, and repairs it.
    pub fn befall(&mut self, node: usize, fault: Fault, lasting: Lasting) -> TestResult {
        let part = Part::Storage(node);
        self.strike(part, fault)?;
        match lasting {
            Lasting::Moment => thread::sleep(Lasting::MOMENT),
            Lasting::Missed => {
                self.wait_until_missed(node)?;
                thread::sleep(Lasting::WHILE);
            }
            Lasting::Long => thread::sleep(Lasting::LONG),
        }
        self.mend(part, fault)
    }

    /// Applies a fault.
    pub fn strike(&mut self, part: Part, fault: Fault) -> TestResult {
        match fault {
            Fault::Killed => {
                self.service(part).kill();
                Ok(())
            }
            Fault::Stopped => self.service(part).freeze(),
            Fault::Cut => self.network.isolate(self.node(part)),
            Fault::Deaf => self.network.deafen(self.node(part)),
            Fault::Mute => self.network.silence(self.node(part)),
        }
    }

    /// Repairs a fault. Repairing a cut restores the links of all nodes.
    pub fn mend(&mut self, part: Part, fault: Fault) -> TestResult {
        match fault {
            Fault::Killed => self.restart(part),
            Fault::Stopped => self.service(part).thaw(),
            Fault::Cut | Fault::Deaf | Fault::Mute => self.network.heal(),
        }
    }
}
