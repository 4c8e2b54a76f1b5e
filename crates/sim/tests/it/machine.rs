//! Runs of the whole cluster on one machine, small enough for every build.

use sim::{RunOptions, run_seed};

const SMALL: RunOptions = RunOptions { rounds: 5, operations: 80, intent_log: true };

#[test]
fn seeds_pass() {
    for seed in 0..20 {
        if let Err(violation) = run_seed(seed, SMALL) {
            panic!("{violation}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 7, 12] {
        let (first, second) = (run_seed(seed, SMALL).unwrap(), run_seed(seed, SMALL).unwrap());
        assert_eq!(first, second, "seed {seed}");
        assert!(first.operations > 0 && first.kills + first.power_cuts == 5);
    }
    assert_ne!(run_seed(1, SMALL).unwrap().fingerprint, run_seed(7, SMALL).unwrap().fingerprint);
}

/// Negative control: the checks must detect a missing intent log, otherwise they can't detect a
/// broken one.
#[test]
fn damage_without_an_intent_log_is_detected() {
    let options = RunOptions { intent_log: false, ..SMALL };
    let violation =
        (0..20).find_map(|seed| run_seed(seed, options).err()).expect("some seed of twenty fails");
    assert!(violation.to_string().contains(&format!("cargo run -p sim -- --seed {}", violation.seed)));
}
