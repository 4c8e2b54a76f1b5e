//! Memory and processor: copies in memory, the checksum of all data in transit (CRC-32C), and the
//! cost of erasure coding (Reed-Solomon).

use crate::{BestRate, Limit, median, per_second};
use reed_solomon_simd::ReedSolomonEncoder;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

/// Data and parity shards of a stripe: usual for wide pools.
const ENCODED: (usize, usize) = (8, 2);

/// Bytes that a thread copies, sums or encodes at a time: the size of the data path's largest
/// request, so they are in the caches if those hold it.
const PIECE_BYTES: usize = 4 << 20;

/// Rounds of which the median is reported.
const ROUNDS: u32 = 3;

/// Measures on one core and on `threads` together, for `nanoseconds` in total, with threads that
/// the kernel places. The first result and every other one after it are those of one core. Blocks
/// the calling thread; ends early, with `None`, when `stop` is set.
pub fn measure(threads: u32, nanoseconds: u64, stop: &AtomicBool) -> Option<Vec<BestRate>> {
    let works: [(Limit, Work); 3] =
        [(Limit::MemoryCopy, copy), (Limit::Checksum, sum), (Limit::Encoding, encode)];
    let round_ns = nanoseconds / (2 * works.len() as u64 * u64::from(ROUNDS));
    let mut found = Vec::new();
    for (limit, work) in works {
        for threads in [1, threads.max(1)] {
            let rate = median_rate(threads, round_ns, stop, work)?;
            found.push(BestRate { limit, rate, streams: threads });
        }
    }
    Some(found)
}

/// What a thread does repeatedly.
type Work = fn(&mut Buffers);

struct Buffers {
    from: Vec<u8>,
    to: Vec<u8>,
    encoder: ReedSolomonEncoder,
}

impl Buffers {
    /// Not zeros: those might share memory. `None` if the encoder refuses its sizes.
    fn new() -> Option<Buffers> {
        let (content, parity) = ENCODED;
        let encoder = ReedSolomonEncoder::new(content, parity, PIECE_BYTES / content).ok()?;
        Some(Buffers { from: vec![0x5a; PIECE_BYTES], to: vec![0xa5; PIECE_BYTES], encoder })
    }
}

fn copy(buffers: &mut Buffers) {
    buffers.to.copy_from_slice(black_box(&buffers.from));
    black_box(&mut buffers.to);
}

fn sum(buffers: &mut Buffers) {
    black_box(types::crc32c(black_box(&buffers.from)));
}

/// Encodes a stripe with its parity. The encoder has the right sizes, so it refuses nothing.
fn encode(buffers: &mut Buffers) {
    for piece in black_box(&buffers.from).chunks_exact(PIECE_BYTES / ENCODED.0) {
        let _ = buffers.encoder.add_original_shard(piece);
    }
    let _ = black_box(buffers.encoder.encode());
}

fn median_rate(threads: u32, round_ns: u64, stop: &AtomicBool, work: Work) -> Option<f64> {
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
    let mut buffers = Buffers::new()?;
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
        let found = measure(2, 18_000_000, &AtomicBool::new(false)).unwrap();
        let kinds: Vec<_> = found.iter().map(|best| (best.limit, best.streams)).collect();
        let expected = [Limit::MemoryCopy, Limit::Checksum, Limit::Encoding]
            .map(|limit| [(limit, 1), (limit, 2)])
            .concat();
        assert_eq!(kinds, expected);
        assert!(found.iter().all(|best| best.rate > 0.0));
        assert_eq!(measure(2, u64::MAX, &AtomicBool::new(true)), None);
    }

    #[test]
    fn encoded_content_survives_the_loss_of_two_shards() {
        let (content, parity) = ENCODED;
        let mut buffers = Buffers::new().unwrap();
        buffers.from.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 % 251) as u8);
        let pieces: Vec<Vec<u8>> =
            buffers.from.chunks_exact(PIECE_BYTES / content).map(<[u8]>::to_vec).collect();
        for _ in 0..2 {
            // Also the second time: the encoder starts over.
            encode(&mut buffers);
        }
        pieces.iter().for_each(|piece| buffers.encoder.add_original_shard(piece).unwrap());
        let coded: Vec<Vec<u8>> =
            buffers.encoder.encode().unwrap().recovery_iter().map(<[u8]>::to_vec).collect();
        let there = pieces.iter().enumerate().skip(parity);
        let found = reed_solomon_simd::decode(content, parity, there, coded.iter().enumerate()).unwrap();
        assert!((0..parity).all(|lost| found[&lost] == pieces[lost]));
    }
}
