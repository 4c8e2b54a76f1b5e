//! Capacity classes of targets.

use types::{CapacityClass, Target, reserved_space};

/// Percentage of free space below which a target gets no new files.
const EMERGENCY_PERCENT: u64 = 1;
/// Percentage of free space below which new files prefer other targets.
const LOW_PERCENT: u64 = 5;

/// Classifies a target of `capacity` bytes with `free` bytes left. A target takes data until only
/// [`reserved_space`] bytes are left:
/// - `Emergency`: nothing is free, or less than 1 % of the capacity, or less than nine eighths of
///   [`reserved_space`];
/// - `Low`: less than 5 % of the capacity is free, or less than twice [`reserved_space`];
/// - `Normal`: otherwise.
pub fn classify(capacity: u64, free: u64) -> CapacityClass {
    if free == 0 || free < emergency_threshold(capacity) {
        CapacityClass::Emergency
    } else if free < percent(capacity, LOW_PERCENT).max(2 * reserved_space(capacity)) {
        CapacityClass::Low
    } else {
        CapacityClass::Normal
    }
}

/// Free space of a target for new files, in bytes, and its capacity class for them, if so many
/// percent of it are to stay free.
pub(crate) fn space_for_new_files(target: &Target, spare_percent: u8) -> (u64, CapacityClass) {
    if spare_percent == 0 {
        return (target.free, target.class);
    }
    let spare = (u128::from(target.capacity) * u128::from(spare_percent) / 100) as u64;
    let free = target.free.saturating_sub(spare);
    let class = match (target.class, classify(target.capacity, free)) {
        (CapacityClass::Emergency, _) | (_, CapacityClass::Emergency) => CapacityClass::Emergency,
        (CapacityClass::Normal, class) => class,
        (class, _) => class,
    };
    (free, class)
}

/// Free bytes that a target can take before it is in class `Emergency`.
pub fn usable_bytes(capacity: u64, free: u64) -> u64 {
    free.saturating_sub(emergency_threshold(capacity))
}

/// A target with fewer free bytes than this is in class `Emergency`: a little before it refuses
/// data, since it is measured only now and then.
fn emergency_threshold(capacity: u64) -> u64 {
    let reserved = reserved_space(capacity);
    percent(capacity, EMERGENCY_PERCENT).max(reserved + reserved / 8)
}

fn percent(capacity: u64, percent: u64) -> u64 {
    (u128::from(capacity) * u128::from(percent) / 100) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn spare_space_is_not_for_new_files() {
        let target = |free| Target { capacity: 1000 << 30, free, ..crate::choose::tests::target(1) };
        let room = |free: u64, spare| space_for_new_files(&target(free << 30), spare);
        assert_eq!(room(300, 0), (300 << 30, Normal));
        assert_eq!(room(300, 20), (100 << 30, Normal));
        assert_eq!(room(220, 20), (20 << 30, Low));
        assert_eq!(room(201, 20), (1 << 30, Emergency));
        assert_eq!(room(100, 20), (0, Emergency));
        let low = Target { class: Low, ..target(900 << 30) };
        assert_eq!(space_for_new_files(&low, 10).1, Low, "others on the same disk may have filled it");
    }
    use CapacityClass::{Emergency, Low, Normal};

    fn check(capacity: u64, low_below: u64, emergency_below: u64) {
        assert_eq!(classify(capacity, 0), Emergency);
        assert_eq!(classify(capacity, emergency_below - 1), Emergency);
        assert_eq!(classify(capacity, emergency_below), Low);
        assert_eq!(classify(capacity, low_below - 1), Low);
        assert_eq!(classify(capacity, low_below), Normal);
        assert_eq!(classify(capacity, capacity), Normal);
    }

    #[test]
    fn small_targets_are_classified_by_their_reserved_share() {
        check(1024 * MIB, 256 * MIB, 144 * MIB);
        check(1000, 250, 140);
    }

    #[test]
    fn larger_targets_are_classified_by_reserved_bytes() {
        check(4096 * MIB, 1024 * MIB, 576 * MIB);
        check(16384 * MIB, 1024 * MIB, 576 * MIB);
    }

    #[test]
    fn large_targets_are_classified_by_percentage() {
        check(100 << 40, 5 << 40, 1 << 40);
    }

    #[test]
    fn a_target_in_between_uses_both() {
        // 1 % of 40000 MiB is 400 MiB, less than `reserved_space`; 5 % is 2000 MiB, more than twice
        // as much.
        check(40000 * MIB, 2000 * MIB, 576 * MIB);
    }

    #[test]
    fn a_target_that_refuses_data_is_in_class_emergency() {
        let capacities = [1000, 300 * MIB, 3 << 30, 5 << 30, 60 << 30, 10 << 40];
        capacities.iter().for_each(|&all| assert_eq!(classify(all, reserved_space(all)), Emergency, "{all}"));
    }

    #[test]
    fn nothing_free_is_an_emergency_at_any_size() {
        assert_eq!(classify(0, 0), Emergency);
        assert_eq!(classify(50, 0), Emergency);
        assert_eq!(classify(50, 50), Normal);
        assert_eq!(classify(u64::MAX, u64::MAX), Normal);
    }
}
