//! How full is full.

use types::{CapacityClass, Target};

const MIB: u64 = 1 << 20;
/// Below this capacity a target is judged by percentages alone, or a small one would never be usable.
const TINY_CAPACITY: u64 = 4096 * MIB;
/// Free percentage below which a target takes no new files.
const EMERGENCY_PERCENT: u64 = 1;
/// Free bytes below which a target takes no new files, unless it is tiny: room for its own bookkeeping.
const EMERGENCY_FLOOR: u64 = 64 * MIB;
/// Free percentage below which new files prefer other targets.
const LOW_PERCENT: u64 = 5;
/// Free bytes below which new files prefer other targets, unless the target is tiny.
const LOW_FLOOR: u64 = 512 * MIB;

/// Classifies a target of `capacity` bytes with `free` bytes left.
///
/// With `floor` taken as 0 below 4 GiB of capacity:
/// - `Emergency`: nothing is free, or `free < max(1 % of capacity, 64 MiB floor)`;
/// - `Low`: `free < max(5 % of capacity, 512 MiB floor)`;
/// - `Normal`: otherwise.
pub fn classify(capacity: u64, free: u64) -> CapacityClass {
    let threshold = |percent, floor| threshold(capacity, percent, floor);
    if free == 0 || free < threshold(EMERGENCY_PERCENT, EMERGENCY_FLOOR) {
        CapacityClass::Emergency
    } else if free < threshold(LOW_PERCENT, LOW_FLOOR) {
        CapacityClass::Low
    } else {
        CapacityClass::Normal
    }
}

/// The room of a target for new files, bytes, and how full it is for them, where so many percent of it are to stay free.
pub(crate) fn for_new_files(target: &Target, spare_percent: u8) -> (u64, CapacityClass) {
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

/// How many of its free bytes a target can take before it is in an emergency.
pub fn usable(capacity: u64, free: u64) -> u64 {
    free.saturating_sub(threshold(capacity, EMERGENCY_PERCENT, EMERGENCY_FLOOR))
}

fn threshold(capacity: u64, percent: u64, floor: u64) -> u64 {
    let share = (capacity as u128 * percent as u128 / 100) as u64;
    if capacity < TINY_CAPACITY { share } else { share.max(floor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_stay_free_is_no_room_for_new_files() {
        let target = |free| Target { capacity: 1000 << 30, free, ..crate::choose::tests::target(1) };
        let room = |free: u64, spare| for_new_files(&target(free << 30), spare);
        assert_eq!(room(300, 0), (300 << 30, Normal));
        assert_eq!(room(300, 20), (100 << 30, Normal));
        assert_eq!(room(220, 20), (20 << 30, Low));
        assert_eq!(room(201, 20), (1 << 30, Emergency));
        assert_eq!(room(100, 20), (0, Emergency));
        let low = Target { class: Low, ..target(900 << 30) };
        assert_eq!(for_new_files(&low, 10).1, Low, "others on the same disk may have filled it");
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
    fn tiny_targets_go_by_percentage() {
        check(100 * MIB, 5 * MIB, MIB);
        check(1000, 50, 10);
    }

    #[test]
    fn small_targets_go_by_floor() {
        check(4096 * MIB, 512 * MIB, 64 * MIB);
    }

    #[test]
    fn large_targets_go_by_percentage() {
        check(100 << 40, 5 << 40, 1 << 40);
    }

    #[test]
    fn a_target_between_the_floors_uses_both() {
        // 1 % of 8000 MiB is 80 MiB, above its floor; 5 % is 400 MiB, below its floor.
        check(8000 * MIB, 512 * MIB, 80 * MIB);
    }

    #[test]
    fn nothing_free_is_an_emergency_at_any_size() {
        assert_eq!(classify(0, 0), Emergency);
        assert_eq!(classify(50, 0), Emergency);
        assert_eq!(classify(50, 50), Normal);
        assert_eq!(classify(u64::MAX, u64::MAX), Normal);
    }
}
