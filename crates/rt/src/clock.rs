//! Time and randomness: the only place where either enters the program.

use crate::context;
use std::cell::Cell;
use std::io;
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

/// Nanoseconds of a clock that never goes back; its zero is arbitrary. It continues during suspend:
/// to a process that resumes, the time must appear as passed, since other machines weren't
/// suspended.
pub fn monotonic_ns() -> u64 {
    context::with_sim(|world| world.monotonic_ns()).unwrap_or_else(kernel_clock_ns)
}

/// Whether a time service keeps the kernel's clock synchronized (adjtimex(2)); `None` if the kernel
/// doesn't say.
pub fn is_clock_synchronized() -> Option<bool> {
    // SAFETY: an all-zero `timex` is valid, and asks for nothing to be changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a valid timex.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    (result >= 0).then_some(state.status & libc::STA_UNSYNC == 0)
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

/// A fast random number. For choices, and for ids that may be predictable: the next numbers can be
/// computed from one of them. Keys, tokens and secret ids use [`secret_bytes`].
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

/// Unpredictable random bytes, for keys, tokens and secret ids, from the kernel (`getrandom(2)`),
/// once it has gathered enough entropy. In a simulation they derive from the seed, so that it can
/// be replayed.
///
/// # Panics
/// When the system call is forbidden: a predictable secret is worse than no process.
pub fn secret_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let is_simulated = context::with_sim(|world| {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&world.random().to_le_bytes()[..piece.len()]);
        }
    });
    if is_simulated.is_none()
        && let Err(error) = fill_from_kernel(&mut bytes)
    {
        panic!("getrandom(2) failed: {error}; hint: a container's seccomp profile must allow it");
    }
    bytes
}

/// An unpredictable random number, as [`secret_bytes`].
pub fn secret_u64() -> u64 {
    u64::from_le_bytes(secret_bytes())
}

/// Draws the keys of the process's hash maps ([`types::set_hash_keys`]) from the kernel. A process
/// that serves requests does so first. [`random_u64`] won't do: its numbers are visible to others,
/// who could predict the next ones.
pub fn draw_hash_keys() {
    types::set_hash_keys([seed(), seed()]);
}

/// One step of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// 2014).
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    match fill_from_kernel(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        // Only kernels without getrandom get here; the clock and the stack's address still differ
        // between threads.
        Err(_) => monotonic_ns() ^ (&raw const bytes as u64).rotate_left(32),
    }
}

fn fill_from_kernel(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: the buffer has the length given.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => match io::Error::last_os_error() {
                // A signal arrived before there was enough entropy.
                interrupted if interrupted.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const DAY_S: u64 = 86_400;

    #[test]
    fn secrets_fill_any_length_and_differ() {
        let drawn: [[u8; 37]; 8] = std::array::from_fn(|_| secret_bytes());
        for (at, secret) in drawn.iter().enumerate() {
            assert!(!drawn[..at].contains(secret), "the same twice");
            assert!(secret.chunks(8).all(|piece| piece.len() < 8 || piece != [0; 8]), "{secret:?}");
        }
    }

    /// Runs in a time namespace whose machine was suspended for a day.
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
        let output = String::from_utf8_lossy(&slept.stdout);
        assert!(slept.status.success() && output.contains("1 passed"), "{output}");
    }
}
