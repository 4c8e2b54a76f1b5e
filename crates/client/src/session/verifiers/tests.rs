use super::*;
use types::TargetId;

const ONE: ChunkLocation = ChunkLocation::Target(TargetId(1));
const GROUP: ChunkLocation = ChunkLocation::Group(GroupId(7));

#[test]
fn a_changed_verifier_is_a_loss_of_earlier_changes() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.record(ONE, 5, true);
    file.end(false);
    verifiers.record(ONE, 5, false);
    assert!(
        !verifiers.has_lost(ONE, file.since().unwrap()),
        "the process may have died, the memory is there"
    );
    verifiers.record(ONE, 6, false);
    assert!(verifiers.has_lost(ONE, file.since().unwrap()));
    assert!(!verifiers.has_lost(GROUP, file.since().unwrap()), "others have lost nothing");
    file.record_loss(verifiers.losses());
    assert!(!verifiers.has_lost(ONE, file.since().unwrap()), "it is told once");
}

#[test]
fn synced_changes_are_not_affected_by_a_loss() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    file.end(false);
    file.synced(file.unsynced_changes().unwrap());
    assert_eq!((file.unsynced_changes(), file.unsynced_since()), (None, None));
    verifiers.record(ONE, 5, true);
    verifiers.record(ONE, 6, true);
    file.begin(verifiers.losses());
    file.end(false);
    assert!(!verifiers.has_lost(ONE, file.since().unwrap()));
}

#[test]
fn a_change_in_flight_keeps_its_starting_loss_count() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.record(ONE, 5, true);
    verifiers.record(ONE, 6, true);
    // Another change begins before the first is counted.
    file.begin(verifiers.losses());
    file.end(false);
    file.end(false);
    assert!(verifiers.has_lost(ONE, file.since().unwrap()));
}

#[test]
fn a_late_answer_with_the_old_verifier_is_a_loss() {
    let verifiers = Verifiers::default();
    verifiers.record(ONE, 5, true);
    verifiers.record(ONE, 6, true);
    let since = verifiers.losses();
    verifiers.record(ONE, 5, true);
    assert!(verifiers.has_lost(ONE, since), "it was acknowledged before the power went");
}

#[test]
fn unsynced_state_passes_to_the_next_use() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.record(ONE, 5, true);
    file.end(false);
    let next = Unsynced::after(file.unsynced_since());
    verifiers.record(ONE, 6, false);
    assert!(next.unsynced_changes().is_some() && verifiers.has_lost(ONE, next.since().unwrap()));
}

#[test]
fn assumed_unsynced_changes_ignore_earlier_losses() {
    let verifiers = Verifiers::default();
    let mut file = Unsynced::default();
    file.begin(verifiers.losses());
    verifiers.record(ONE, 5, true);
    file.end(true);
    verifiers.record(ONE, 6, false);
    file.assume_unsynced();
    assert!(file.unsynced_changes().is_some() && file.since().is_none());
}

#[test]
fn a_durable_change_leaves_nothing_unsynced() {
    let mut file = Unsynced::default();
    file.begin(0);
    file.end(true);
    assert_eq!(file.unsynced_changes(), None);
}

#[test]
fn syncfs_sees_changed_groups_and_each_loss_once() {
    let verifiers = Verifiers::default();
    verifiers.record(ONE, 5, true);
    verifiers.record(GROUP, 1, true);
    assert_eq!(verifiers.take_changed_groups(), [GroupId(7)]);
    assert!(verifiers.take_changed_groups().is_empty() && !verifiers.take_loss());
    verifiers.mark_changed(&[GroupId(7)]);
    assert_eq!(verifiers.take_changed_groups(), [GroupId(7)]);
    verifiers.record(GROUP, 9, false);
    assert!(verifiers.take_loss() && !verifiers.take_loss());
}

#[test]
fn a_new_metadata_verifier_is_a_loss_and_a_known_one_is_not() {
    let verifiers = Verifiers::default();
    verifiers.record_metadata(0);
    verifiers.record_metadata(5);
    let mut file = Unsynced::default();
    file.made(verifiers.losses());
    verifiers.record_metadata(5);
    assert!(!verifiers.has_lost_metadata(file.since().unwrap()));
    verifiers.record_metadata(6);
    assert!(verifiers.has_lost_metadata(file.since().unwrap()) && !verifiers.has_lost(ONE, 0));
    file.record_loss(verifiers.losses());
    // Reported by a service that has not used the store since.
    verifiers.record_metadata(5);
    verifiers.record_metadata(6);
    assert!(!verifiers.has_lost_metadata(file.since().unwrap()));
}
