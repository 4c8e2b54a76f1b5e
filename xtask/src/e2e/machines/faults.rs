//! What can befall a process of a cluster, and how it is put right.

use super::super::outcome::TestResult;
use super::{Cluster, Part};

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

impl Cluster {
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
