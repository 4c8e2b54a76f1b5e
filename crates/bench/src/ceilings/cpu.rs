//! Memory and processor: copies in memory, and the checksum that all data gets on its way (CRC-32C).
//!
//! Encodings for redundancy other than copies aren't measured: there are none.

use super::{Best, per_second};
use crate::results::{Limit, median};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that a thread copies or sums at a time: what the largest request of the data path has, and so in the caches where those hold it.
const PIECE_BYTES: usize = 4 << 20;

/// Rounds of which the median is told.
const ROUNDS: u32 = 3;

/// Measures on one core and on `threads` together, for so many nanoseconds in all, with threads that the kernel places. The first and third figure are those of
/// one core. Blocks the calling thread; ends early, with `None`, when `stop` is set.
pub fn measure(threads: u32, nanoseconds: u64, stop: &AtomicBool) -> Option<Vec<Best>> {
    let round_ns = nanoseconds / (4 * u64::from(ROUNDS));
    let works: [(Limit, Work); 2] = [(Limit::MemoryCopy, copy), (Limit::Checksum, sum)];
    let mut found = Vec::new();
    for (limit, work) in works {
        for threads in [1, threads.max(1)] {
            let rate = middle_rate(threads, round_ns, stop, work)?;
            found.push(Best { limit, rate, streams: threads });
        }
    }
    Some(found)
}

/// What a thread does, time and again.
type Work = fn(&mut Buffers);

struct Buffers {
    from: Vec<u8>,
    to: Vec<u8>,
}

fn copy(buffers: &mut Buffers) {
    buffers.to.copy_from_slice(black_box(&buffers.from));
    black_box(&mut buffers.to);
}

fn sum(buffers: &mut Buffers) {
    black_box(types::crc32c(black_box(&buffers.from)));
}

fn middle_rate(threads: u32, round_ns: u64, stop: &AtomicBool, work: Work) -> Option<f64> {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let rate = std::thread::scope(|scope| {
            let running: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| one_thread(round_ns, stop, work))).collect();
            running.into_iter().map(|thread| thread.join().ok().flatten()).sum::<Option<f64>>()
        })?;
        rates.push(rate);
    }
    rates.sort_by(f64::total_cmp);
    median(&rates)
}

fn one_thread(round_ns: u64, stop: &AtomicBool, work: Work) -> Option<f64> {
    // Not zeros: those needn't be memory of their own.
    let mut buffers = Buffers { from: vec![0x5a; PIECE_BYTES], to: vec![0xa5; PIECE_BYTES] };
    let (began_ns, mut bytes) = (rt::monotonic_ns(), 0);
    loop {
        work(&mut buffers);
        bytes += PIECE_BYTES as u64;
        let past_ns = rt::monotonic_ns() - began_ns;
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        if past_ns >= round_ns {
            return Some(per_second(bytes, past_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_are_there_and_a_stop_is_heeded() {
        let found = measure(2, 12_000_000, &AtomicBool::new(false)).unwrap();
        let kinds: Vec<_> = found.iter().map(|best| (best.limit, best.streams)).collect();
        let expected =
            [(Limit::MemoryCopy, 1), (Limit::MemoryCopy, 2), (Limit::Checksum, 1), (Limit::Checksum, 2)];
        assert_eq!(kinds, expected);
        assert!(found.iter().all(|best| best.rate > 0.0));
        assert_eq!(measure(2, u64::MAX, &AtomicBool::new(true)), None);
    }
}
