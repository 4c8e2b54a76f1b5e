//! Counters of requests.

use crate::abi::Opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts requests by operation, on each core separately. Unknown operations count as number 0.
pub struct Stats {
    cores: Vec<CoreStats>,
}

/// On cache lines of its own, so that cores count without contention.
#[repr(align(128))]
struct CoreStats {
    requests: [AtomicU64; Opcode::LIMIT],
}

impl Stats {
    /// Creates counters for this many cores.
    pub fn new(cores: usize) -> Stats {
        let zeros = || CoreStats { requests: std::array::from_fn(|_| AtomicU64::new(0)) };
        Stats { cores: (0..cores.max(1)).map(|_| zeros()).collect() }
    }

    pub(crate) fn count(&self, core: usize, opcode: u32) {
        let number = Opcode::from_number(opcode).map_or(0, |op| op as usize);
        self.cores[core % self.cores.len()].requests[number].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the requests of one operation on all cores.
    pub fn requests(&self, op: Opcode) -> u64 {
        self.cores.iter().map(|core| core.requests[op as usize].load(Ordering::Relaxed)).sum()
    }

    /// Returns the operations that were requested at least once, with their counts.
    pub fn all(&self) -> Vec<(Opcode, u64)> {
        Opcode::ALL.iter().map(|&op| (op, self.requests(op))).filter(|&(_, count)| count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_add_up() {
        let stats = Stats::new(2);
        stats.count(0, Opcode::Read as u32);
        stats.count(1, Opcode::Read as u32);
        stats.count(1, Opcode::Open as u32);
        stats.count(0, 4711);
        assert_eq!(stats.requests(Opcode::Read), 2);
        assert_eq!(stats.all(), [(Opcode::Open, 1), (Opcode::Read, 2)]);
    }
}
