use super::*;
use types::TargetId;

const ONE: Keeper = Keeper::Target(TargetId(1));
const GROUP: Keeper = Keeper::Mirror(GroupId(7));

#[test]
fn another_verifier_is_a_loss_of_what_was_changed_before() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.heard(ONE, 5, true);
    file.end(false);
    verifiers.heard(ONE, 5, false);
    assert!(
        !verifiers.has_lost(ONE, file.since().unwrap()),
        "the process may have died, the memory is there"
    );
    verifiers.heard(ONE, 6, false);
    assert!(verifiers.has_lost(ONE, file.since().unwrap()));
    assert!(!verifiers.has_lost(GROUP, file.since().unwrap()), "others have lost nothing");
    file.found_loss(verifiers.losses());
    assert!(!verifiers.has_lost(ONE, file.since().unwrap()), "it is told once");
}

#[test]
fn what_was_synced_before_a_loss_is_not_concerned() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    file.end(false);
    file.synced(file.unsynced_changes().unwrap());
    assert_eq!((file.unsynced_changes(), file.left()), (None, None));
    verifiers.heard(ONE, 5, true);
    verifiers.heard(ONE, 6, true);
    file.begin(verifiers.losses());
    file.end(false);
    assert!(!verifiers.has_lost(ONE, file.since().unwrap()));
}

#[test]
fn a_change_under_way_keeps_the_time_at_which_it_began() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.heard(ONE, 5, true);
    verifiers.heard(ONE, 6, true);
    // Another change begins before the first is counted.
    file.begin(verifiers.losses());
    file.end(false);
    file.end(false);
    assert!(verifiers.has_lost(ONE, file.since().unwrap()));
}

#[test]
fn an_answer_that_comes_late_is_a_loss_too() {
    let verifiers = Verifiers::default();
    verifiers.heard(ONE, 5, true);
    verifiers.heard(ONE, 6, true);
    let since = verifiers.losses();
    verifiers.heard(ONE, 5, true);
    assert!(verifiers.has_lost(ONE, since), "it was acknowledged before the power went");
}

#[test]
fn the_next_use_of_a_file_knows_what_the_last_one_left() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.heard(ONE, 5, true);
    file.end(false);
    let next = Unsynced::after(file.left());
    verifiers.heard(ONE, 6, false);
    assert!(next.unsynced_changes().is_some() && verifiers.has_lost(ONE, next.since().unwrap()));
}

#[test]
fn what_is_in_doubt_after_durable_changes_is_not_concerned_by_a_loss() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.heard(ONE, 5, true);
    file.end(true);
    verifiers.heard(ONE, 6, false);
    file.doubt();
    assert!(file.unsynced_changes().is_some() && file.since().is_none());
}

#[test]
fn a_durable_change_leaves_nothing_unsynced_changes() {
    let mut file = Unsynced::default();
    file.begin(0);
    file.end(true);
    assert_eq!(file.unsynced_changes(), None);
}

#[test]
fn who_syncs_everything_hears_of_changed_groups_and_of_each_loss_once() {
    let verifiers = Verifiers::default();
    verifiers.heard(ONE, 5, true);
    verifiers.heard(GROUP, 1, true);
    assert_eq!(verifiers.take_changed_groups(), [GroupId(7)]);
    assert!(verifiers.take_changed_groups().is_empty() && !verifiers.take_loss());
    verifiers.are_changed(&[GroupId(7)]);
    assert_eq!(verifiers.take_changed_groups(), [GroupId(7)]);
    verifiers.heard(GROUP, 9, false);
    assert!(verifiers.take_loss() && !verifiers.take_loss());
}

#[test]
fn another_metadata_store_is_a_loss_and_one_of_before_is_none() {
    let verifiers = Verifiers::default();
    verifiers.heard_of_names(0);
    verifiers.heard_of_names(5);
    let mut file = Unsynced::default();
    file.made(verifiers.losses());
    verifiers.heard_of_names(5);
    assert!(!verifiers.has_lost_names(file.since().unwrap()));
    verifiers.heard_of_names(6);
    assert!(verifiers.has_lost_names(file.since().unwrap()) && !verifiers.has_lost(ONE, 0));
    file.found_loss(verifiers.losses());
    // Reported by a service that has not used the store since.
    verifiers.heard_of_names(5);
    verifiers.heard_of_names(6);
    assert!(!verifiers.has_lost_names(file.since().unwrap()));
}
