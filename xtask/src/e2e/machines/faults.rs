//! What can befall a process of a cluster, and how it is put right.

use super::super::outcome::TestResult;
use super::{Cluster, Part};
use std::thread;
use std::time::Duration;

/// What befalls a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, as a crash is; mended by a new start.
    Killed,
    /// SIGSTOP: it takes connections, and says nothing.
    Stopped,
    /// Its node neither hears nor is heard.
    Cut,
    /// Its node doesn't hear.
    Deaf,
    /// Its node isn't heard.
    Mute,
}

impl Fault {
    /// Each kind once.
    pub const ALL: [Fault; 5] = [Fault::Killed, Fault::Stopped, Fault::Cut, Fault::Deaf, Fault::Mute];
}

/// How long a fault of a storage node with mirrored files lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Over before anybody needs to be taken out.
    Moment,
    /// Until a group goes on without the node, and a while longer.
    Missed,
    /// Until the node counts as offline, and longer: its lease, of some seconds, has run out as
    /// well.
    Long,
}

impl Lasting {
    const MOMENT: Duration = Duration::from_secs(2);
    const WHILE: Duration = Duration::from_secs(3);
    const LONG: Duration = Duration::from_secs(20);
}

impl Cluster {
    /// Lets something befall a storage node for a time, and puts it right.
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

    /// Lets it happen.
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

    /// Puts it right. Cuts are healed on all nodes at once.
    pub fn mend(&mut self, part: Part, fault: Fault) -> TestResult {
        match fault {
            Fault::Killed => self.restart(part),
            Fault::Stopped => self.service(part).thaw(),
            Fault::Cut | Fault::Deaf | Fault::Mute => self.network.heal(),
        }
    }
}
