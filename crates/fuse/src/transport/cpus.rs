//! The processors of the machine.

use crate::sys;
use std::fs;

/// More processors than any machine has.
const MAX_CPUS: usize = 8192;

/// The machine's processors.
pub(crate) struct Cpus {
    possible: usize,
    allowed: Vec<usize>,
}

impl Cpus {
    /// Reads the processors from the kernel.
    pub(crate) fn of_machine() -> Cpus {
        let list = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let mut allowed = sys::allowed_cpus(MAX_CPUS);
        if allowed.is_empty() {
            allowed.push(0);
        }
        let highest = allowed.iter().copied().max().unwrap_or(0);
        Cpus { possible: highest_in(&list).unwrap_or(0).max(highest) + 1, allowed }
    }

    /// Returns the number of possible processors, numbered from 0: the kernel requires a queue for
    /// each, including those that are offline.
    pub(crate) fn possible(&self) -> usize {
        self.possible
    }

    /// Returns the processors that this process may run on now.
    pub(crate) fn allowed(&self) -> &[usize] {
        &self.allowed
    }

    /// Returns the processor to which the thread of a queue is pinned; `None` where that isn't
    /// allowed.
    pub(crate) fn pin(&self, cpu: usize) -> Option<usize> {
        self.allowed.contains(&cpu).then_some(cpu)
    }
}

/// Returns the highest number in a list such as `0-3,8`.
fn highest_in(list: &str) -> Option<usize> {
    let numbers = list.trim().split([',', '-']).filter_map(|n| n.parse::<usize>().ok());
    numbers.filter(|&n| n < MAX_CPUS).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(highest_in("0\n"), Some(0));
        assert_eq!(highest_in("0-1\n"), Some(1));
        assert_eq!(highest_in("0-3,8,10-11"), Some(11));
        assert_eq!(highest_in(""), None);
        assert_eq!(highest_in("999999"), None);
    }

    #[test]
    fn every_allowed_processor_is_possible() {
        let cpus = Cpus::of_machine();
        assert!(!cpus.allowed().is_empty());
        for &cpu in cpus.allowed() {
            assert!(cpu < cpus.possible());
            assert_eq!(cpus.pin(cpu), Some(cpu));
        }
        assert_eq!(cpus.pin(cpus.possible()), None);
    }
}
