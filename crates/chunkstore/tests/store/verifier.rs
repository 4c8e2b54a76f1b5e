//! Clients that rely on unsynced content learn that it may be lost.

use crate::common::{LOG_BYTES, identity, open};
use chunkstore::{IfAbsent, Store};
use rt::sim::Machine;
use rt::{File, IoBuf, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use types::GroupId;

const DIR: &str = "/target";
const GROUP: GroupId = GroupId(7);

fn formatted(seed: u64) -> Machine {
    let mut machine = Machine::new(seed);
    machine
        .run(async { Store::format_with_log(Path::new(DIR), &identity(), LOG_BYTES).await.unwrap() })
        .unwrap();
    machine
}

/// Opens the target and a group's store on it.
async fn opened() -> (Arc<Store>, Arc<Store>) {
    let (target, _) = open(Path::new(DIR)).await;
    let group = Store::open_group(&target, GROUP, IfAbsent::Create).await.unwrap().expect("it is made").0;
    (target, group)
}

async fn verifiers() -> (u64, u64) {
    let (target, group) = opened().await;
    (target.verifier(), group.verifier())
}

#[test]
fn it_lasts_as_long_as_the_memory_of_the_machine() {
    let mut machine = formatted(1);
    let first = machine.run(verifiers()).unwrap();
    machine.kill();
    assert_eq!(machine.run(verifiers()).unwrap(), first, "only the process has died");
    machine.crash();
    let (target, group) = machine
        .run(async move {
            let (target, group) = opened().await;
            assert_eq!((target.past_verifier(), group.past_verifier()), first);
            (target.verifier(), group.verifier())
        })
        .unwrap();
    assert!(target != first.0 && group != first.1, "what wasn't synced may be gone");
    machine.kill();
    assert_eq!(machine.run(verifiers()).unwrap(), (target, group));
}

#[test]
fn copies_that_were_never_written_to_have_the_same() {
    let [one, other] = [1, 2].map(|seed| formatted(seed).run(verifiers()).unwrap());
    assert_eq!(one.1, other.1);
    assert_ne!(one.0, other.0, "targets have nothing in common");
}

#[test]
fn what_was_shut_down_is_on_disk() {
    let mut machine = formatted(1);
    let first = machine
        .run(async {
            let (target, group) = opened().await;
            group.close().await.unwrap();
            target.close().await.unwrap();
            (target.verifier(), group.verifier())
        })
        .unwrap();
    machine.crash();
    assert_eq!(machine.run(verifiers()).unwrap(), first);
    machine.crash();
    let (target, group) = machine.run(verifiers()).unwrap();
    assert!(target != first.0 && group != first.1, "it has been in use since");
}

#[test]
fn a_resynced_replica_has_the_verifier_of_the_others() {
    let mut machine = formatted(1);
    machine
        .run(async {
            let (_, group) = opened().await;
            group.drop_verifier();
            assert_ne!(group.verifier(), 77);
            group.adopt_verifier(77).await.unwrap();
            assert_eq!(group.verifier(), 77);
        })
        .unwrap();
    machine.kill();
    assert_eq!(machine.run(verifiers()).unwrap().1, 77);
    machine.crash();
    assert_ne!(machine.run(verifiers()).unwrap().1, 77);
}

#[test]
fn an_invalid_record_gives_a_new_verifier() {
    let mut machine = formatted(1);
    let first = machine.run(verifiers()).unwrap();
    machine
        .run(async {
            let options = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
            let file = File::open(&Path::new(DIR).join("verifier"), options).await.unwrap();
            file.write_at(IoBuf::from_slice(b"verifier = none"), 0).await.unwrap();
        })
        .unwrap();
    machine.kill();
    assert_ne!(machine.run(verifiers()).unwrap().0, first.0);
}
