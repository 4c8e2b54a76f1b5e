//! The inputs that an image yields, and the failure of a test that exceeds its limits.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::catch_unwind;

fn inputs(give: impl Fn(&dyn Fn(&[u8]))) -> Vec<Vec<u8>> {
    let seen = RefCell::new(Vec::new());
    give(&|bytes: &[u8]| seen.borrow_mut().push(bytes.to_vec()));
    seen.into_inner()
}

#[test]
fn every_prefix_is_used_once() {
    let found = inputs(|check| mutate::cuts(b"abc", check));
    assert_eq!(found, [&b""[..], b"a", b"ab"]);
}

#[test]
fn every_bit_is_flipped_once() {
    let found = inputs(|check| mutate::flips(&[0; 3], check));
    assert_eq!(found.len(), 24);
    assert!(found.iter().all(|bytes| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1));
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>().len(), 24);
}

#[test]
fn a_long_image_gives_a_bounded_number_of_inputs_all_over_it() {
    let image = vec![0; 1 << 16];
    let flipped = RefCell::new(Vec::new());
    mutate::flips(&image, |bytes| {
        let at = bytes.iter().position(|byte| *byte != 0).expect("a bit is flipped");
        flipped.borrow_mut().push((at, bytes[at]));
    });
    let flipped = flipped.into_inner();
    assert!(flipped.len() <= 1 << 15, "{}", flipped.len());
    assert!(flipped.last().is_some_and(|(at, _)| *at > image.len() - 100));
    assert_eq!(flipped.iter().map(|(_, bits)| *bits).collect::<BTreeSet<_>>().len(), 8);
}

#[test]
fn random_changes_are_many_and_the_same_in_every_run() {
    let image: Vec<u8> = (0..200).collect();
    let found = inputs(|check| mutate::changes(&image, 1000, check));
    assert_eq!(found, inputs(|check| mutate::changes(&image, 1000, check)));
    assert!(found.iter().collect::<BTreeSet<_>>().len() > 900);
    assert!(found.iter().any(|bytes| bytes.len() > image.len()));
    assert!(found.iter().any(|bytes| bytes.len() < image.len()));
}

#[test]
fn what_fails_for_a_damaged_image_fails() {
    let result = catch_unwind(|| mutate::damage(b"abc", 1, |bytes| assert_ne!(bytes, b"ab")));
    assert!(result.is_err());
}

#[test]
fn a_confined_test_passes() {
    mutate::confined(|| assert_eq!(1 + 1, 2));
}

/// Whether the test runs in the confined process, where it is expected to fail.
fn is_confined() -> bool {
    std::env::var_os("WEFT_CONFINED_TEST").is_some()
}

#[test]
fn a_confined_test_that_panics_fails() {
    let failed = catch_unwind(|| mutate::confined(|| assert!(false_of("panics"), "the reason")));
    expect_failure(failed, "the reason");
}

#[test]
fn a_confined_test_that_takes_too_much_memory_fails() {
    let failed = catch_unwind(|| mutate::confined(|| drop(std::hint::black_box(vec![1u8; 2 << 30]))));
    expect_failure(failed, "memory allocation of 2147483648 bytes failed");
}

#[test]
fn a_confined_test_under_another_name_fails() {
    fn helper() {
        mutate::confined(|| {});
    }
    let failed = catch_unwind(helper);
    expect_failure(failed, "is not the name of the test");
}

fn false_of(word: &str) -> bool {
    word.is_empty()
}

fn expect_failure(outcome: std::thread::Result<()>, reason: &str) {
    let Err(panic) = outcome else {
        assert!(is_confined(), "it passed");
        return;
    };
    if is_confined() {
        std::panic::resume_unwind(panic);
    }
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert!(message.contains(reason), "{message}");
}
