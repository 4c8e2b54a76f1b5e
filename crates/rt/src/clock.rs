//! Time and randomness: the only place where either enters the program.

use crate::context;
use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};
use types::Timestamp;

/// The time of day.
pub fn now() -> Timestamp {
    if let Some(time) = context::with_sim(|world| world.time_of_day()) {
        return time;
    }
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp::new(since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => Timestamp::from_nanos(-(before.duration().as_nanos() as i64)),
    }
}

/// Nanoseconds of a clock that never goes back; its zero is arbitrary. It goes on while the machine sleeps: whoever has slept is to know that others haven't,
/// and takes it like having been stopped for so long.
pub fn monotonic_ns() -> u64 {
    context::with_sim(|world| world.monotonic_ns()).unwrap_or_else(kernel_clock_ns)
}

fn kernel_clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a valid timespec, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

thread_local! {
    /// State of this thread's generator; 0 until it is seeded.
    static GENERATOR: Cell<u64> = const { Cell::new(0) };
}

/// A random number. Good enough for ids and choices, not for keys.
pub fn random_u64() -> u64 {
    if let Some(number) = context::with_sim(|world| world.random()) {
        return number;
    }
    GENERATOR.with(|generator| {
        let mut state = generator.get();
        if state == 0 {
            state = seed();
        }
        let number = split_mix(&mut state);
        generator.set(state);
        number
    })
}

/// Draws the keys of the process's hashed maps ([`types::set_hash_keys`]) from the kernel: a
/// process that serves requests does so before anything else. Not by [`random_u64`], whose numbers
/// others see and can continue.
pub fn draw_hash_keys() {
    types::set_hash_keys([seed(), seed()]);
}

/// One step of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer has the length given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        u64::from_ne_bytes(bytes)
    } else {
        // Only kernels without getrandom come here; the clock and the stack's address still differ between threads.
        monotonic_ns() ^ (&raw const bytes as u64).rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const DAY_S: u64 = 86_400;

    /// In a time namespace whose machine has slept for a day.
    #[test]
    fn time_passes_while_the_machine_sleeps() {
        const HAS_SLEPT: &str = "WEFT_TEST_HAS_SLEPT";
        if std::env::var_os(HAS_SLEPT).is_some() {
            let mut awake = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the pointer is to a valid timespec.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut awake) };
            assert!(monotonic_ns() / 1_000_000_000 >= awake.tv_sec as u64 + DAY_S);
            return;
        }
        let name = "clock::tests::time_passes_while_the_machine_sleeps";
        let slept = Command::new("unshare")
            .args(["--user", "--map-root-user", "--time", "--boottime", &DAY_S.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(HAS_SLEPT, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&slept.stdout);
        assert!(slept.status.success() && told.contains("1 passed"), "{told}");
    }
}
